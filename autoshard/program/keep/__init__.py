"""What is kept for the backward pass: which forward values are saved, which computed again.

    residuals = find_residuals(program.jaxpr)
    closed = with_saved(program.jaxpr, residuals, names)
    closed = with_parts(program.jaxpr, residuals, {"layers": [24]})

numbering   equal numbers for values that are equal
opened      jaxprs without calls
levels      forward loops and the backward loops that read what they hand out
residuals   the candidates by name, and what a choice of them makes necessary
names       of values and loops
rewrite     the step with a choice made
parts       the step with a loop in parts, which may save other values each
"""

from autoshard.program.keep.parts import with_parts
from autoshard.program.keep.residuals import KeepError, Residual, Residuals, find_residuals
from autoshard.program.keep.rewrite import with_saved

__all__ = ["KeepError", "Residual", "Residuals", "find_residuals", "with_parts", "with_saved"]
