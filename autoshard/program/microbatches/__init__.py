"""A step in microbatches: its examples are worked on in equal parts, one part after another.

    closed = with_microbatches(program.jaxpr, 4, state={0, 1, 2})

states    what of a value depends on which examples
sums      what is linear in sums over examples
tracking  these states through the equations of a step
resize    equations on fewer examples
run       a body on one microbatch
cut       what is done before the loop over microbatches, in it, and after it
rewrite   the step with this loop
"""

from autoshard.program.microbatches.rewrite import examples_in, with_microbatches
from autoshard.program.microbatches.states import CutError

__all__ = ["CutError", "examples_in", "with_microbatches"]
