"""Sets of primitives that have something in common, for all who walk over programs."""

from __future__ import annotations

ADDITIONS = frozenset({"add", "add_any"})
ALGORITHMS = frozenset(
    {
        *("sort", "top_k", "approx_top_k", "argmax", "argmin"),
        *("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"),
        *("cholesky", "lu", "qr", "eigh", "eig", "svd", "triangular_solve", "tridiagonal_solve"),
        *("householder_product", "schur", "hessenberg", "tridiagonal"),
        *("select_and_scatter_add", "select_and_gather_add"),
    }
)
"""Ops along whole dimensions, which leave alone what stands beside these."""
STAY = frozenset({"enter", "unstack"})
LEAVING = frozenset({"stack", "yield", "join"})
"""Ops of a loop whose results are read around it."""
SCATTERS = frozenset({"scatter", "scatter-add", "scatter-mul", "scatter-min", "scatter-max"})
"""Ops that write their last operand where indices say, into their first."""
UPDATES = frozenset({"dynamic_update_slice", *SCATTERS})
"""Ops that write into their first operand."""
