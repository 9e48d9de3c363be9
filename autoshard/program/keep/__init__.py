"""What is kept for the backward pass: which forward values are saved, which computed again.

    residuals = find_residuals(program.jaxpr)
    closed = with_saved(program.jaxpr, residuals, names)

numbering   equal numbers for values that are equal
opened      jaxprs without calls
levels      forward loops and the backward loops that read what they hand out
residuals   the candidates by name, and what a choice of them makes necessary
rewrite     the step with a choice made
"""

from autoshard.program.keep.residuals import KeepError, Residual, Residuals, find_residuals
from autoshard.program.keep.rewrite import with_saved

__all__ = ["KeepError", "Residual", "Residuals", "find_residuals", "with_saved"]
