"""Sets of primitives that have something in common, for all who walk over programs."""

from __future__ import annotations

ADDITIONS = frozenset({"add", "add_any"})
DECOMPOSITIONS = frozenset(
    {
        *("lu", "qr", "eigh", "eig", "svd", "schur", "hessenberg", "tridiagonal"),
        *("householder_product", "ormqr", "cholesky_update", "tridiagonal_solve"),
    }
)
"""Linear algebra for which each platform has custom calls, or loops, of its own."""
ALGORITHMS = frozenset(
    {
        *("sort", "top_k", "approx_top_k", "argmax", "argmin"),
        *("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"),
        *("cholesky", "triangular_solve", *DECOMPOSITIONS),
        *("select_and_scatter_add", "select_and_gather_add"),
    }
)
"""Ops along whole dimensions, which leave alone what stands beside these."""
BARRIER = "optimization_barrier"
CALLS_PYTHON = frozenset({"pure_callback", "io_callback", "debug_callback", "debug_print"})
"""Ops that call Python code on the host. Their lowering needs a device of its platform."""
INLINED = frozenset(
    {
        *("jit", "pjit", "closed_call", "core_call", "eval_jaxpr"),
        *("remat", "remat2", "checkpoint"),
        *("custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"),
        *("custom_vmap_call", "remat_opt"),
        *("laid_out", "laid_out_tangent"),
    }
)
"""Calls, in whose place their bodies stand."""
FREE_PRIMITIVES = frozenset(
    {
        *("iota", "full", "empty"),
        *("broadcast_in_dim", "reshape", "squeeze", "expand_dims", "transpose"),
        *("rev", "slice", "split", "concatenate", "stack", "unstack", "pad", "copy"),
        *("stop_gradient", "square", "one_minus_square", "log2"),
        *("convert_element_type", "select_n", "clamp", "enter", "scan_slice"),
        *("add", "sub", "mul", "div", "rem", "neg", "sign", "abs", "floor", "ceil", "max", "min"),
        *("pow", "integer_pow", "sqrt", "rsqrt", "exp", "expm1", "log", "log1p"),
        *("sin", "cos", "tanh", "eq", "ne", "lt", "le", "gt", "ge", "and", "or", "not", "xor"),
        *("shift_left", "shift_right_logical", "shift_right_arithmetic"),
    }
)
"""Ops so cheap that what they make of constants alone is computed wherever it is read."""
STAY = frozenset({"enter", "scan_slice"})
ITERATED = frozenset(
    {
        *("igamma", "igammac", "igamma_grad_a", "random_gamma"),
        "regularized_incomplete_beta",
    }
)
"""Functions of each element that are lowered as loops, until all elements have converged."""
LEAVING = frozenset({"scan_stack", "yield", "join"})
"""Ops of a loop whose results are read around it."""
UNCUT = frozenset({"tpu_custom_call", "pure_callback", "io_callback"})
"""Calls that nobody can look into, and that lowering runs whole on every device."""
TRANSFERS = frozenset({"to_host", "from_host"})
"""Ops that put an array into the memory of the host, or back into that of its chip. As an equation
each is a `device_put`."""
RESHARDS = frozenset({"sharding_constraint", "reshard"})
"""Ops that only ask how an array lies."""
SCATTERS = frozenset({"scatter", "scatter-add", "scatter-mul", "scatter-min", "scatter-max"})
"""Ops that write their last operand where indices say, into their first."""
UPDATES = frozenset({"dynamic_update_slice", *SCATTERS})
"""Ops that write into their first operand."""
