"""One equation of every family, the rule that it must have, and how its operands are drawn.

A case is found by its name; its function has one equation of the primitive that is meant.
"""

from __future__ import annotations

from tests.program.rules.cases.case import Case
from tests.program.rules.cases.elementwise import ELEMENTWISE
from tests.program.rules.cases.indexing import INDEXING
from tests.program.rules.cases.keys import KEYS
from tests.program.rules.cases.linear_algebra import LINEAR_ALGEBRA
from tests.program.rules.cases.products import PRODUCTS
from tests.program.rules.cases.reductions import REDUCTIONS
from tests.program.rules.cases.shapes import SHAPES
from tests.program.rules.cases.windows import WINDOWS

CASES: dict[str, Case] = {
    **PRODUCTS,
    **WINDOWS,
    **INDEXING,
    **REDUCTIONS,
    **SHAPES,
    **ELEMENTWISE,
    **LINEAR_ALGEBRA,
    **KEYS,
}
