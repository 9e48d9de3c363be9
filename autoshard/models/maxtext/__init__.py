"""MaxText's models as programs: `maxtext:llama3.1-8b?per_device_batch_size=3&attention=flash`.

    maxtext:MODEL?KEY=VALUE&...         a model of MaxText's, with any keys of its configuration
    maxtext:path/to.yml?KEY=VALUE&...   a YAML file of its configuration

The step is MaxText's own `train_step` with its optimizer, as its `train_compile` builds it: of
abstract arrays, without a device. The machine says how many devices there are, by which MaxText
counts the batch, and for which platform it chooses kernels. See https://maxtext.readthedocs.io.

config      from a reference to MaxText's configuration
step        from a configuration to a step and its arguments
serve       from a configuration to a step of its engine: of a prompt, or of a token
splits      the splits of the devices over MaxText's mesh that are worth pricing
express     the best plan that a file of MaxText's configuration can express
flags       the flags of XLA that the file says
own_file    the file, and what it costs against the free plan
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from autoshard.models.maxtext.config import configured, keys
from autoshard.models.maxtext.serve import SERVED, serving_step
from autoshard.models.maxtext.step import CONSTRAINTS, train_step
from autoshard.models.providers import OwnFile, ProgramError, Target


class MaxText:
    """The entry point `maxtext` of the group `autoshard.programs`."""

    def __call__(
        self,
        name: str,
        target: Target,
        *,
        constraints: str = "aside",
        step: str = "train",
        **settings: Any,
    ) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
        """A step of a model.

        Args:
          name: of a model of MaxText's, or a YAML file.
          target: how many devices there are, and of which platform.
          constraints: "aside": what MaxText's logical axis rules say of arrays is left out of the
            step; "keep": they are demands, on the mesh that the configuration says.
          step: "train", or "decode" or "prefill" of its engine (`autoshard.models.maxtext.serve`).
          **settings: keys of MaxText's configuration.

        Raises:
          ProgramError: MaxText is not installed, or refuses the configuration; or other constraints
            are asked for.
        """
        if constraints not in CONSTRAINTS:
            known = " or ".join(CONSTRAINTS)
            raise ProgramError(f"constraints={constraints}: it must be {known}")
        if step not in ("train", *SERVED):
            known = ", ".join(("train", *SERVED))
            raise ProgramError(f"step={step}: it must be one of {known}")
        if step != "train" and constraints == "keep":
            raise ProgramError(f"constraints=keep goes with step=train, not with step={step}")
        config = configured(name, target, settings)
        if step != "train":
            return serving_step(config, target, step)
        return train_step(config, target, keep=constraints == "keep")

    def settings(self, name: str) -> Iterable[str]:
        """The keys of MaxText's configuration, and our own."""
        return ("constraints", "step", *keys())

    def own_file(
        self, name: str, target: Target, settings: Mapping[str, Any], **asked: Any
    ) -> OwnFile:
        """A YAML file of MaxText's; see `autoshard.models.providers.Offered.own_file`."""
        from autoshard.models.maxtext.own_file import own_file

        return own_file(name, target, settings, **asked)


program = MaxText()
