"""What chips cost and draw: a TOML file that belongs to the user. None ships with autoshard.

currency = "USD"            # optional: how amounts are named
[v5e]                       # a family of machines, or the path of a machine file in quotes
chip_hour = 1.20            # what an hour of one chip costs, as JAX counts devices
watts = 250                 # optional: what one chip and its share of the host draw in a step
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoshard.files import read_toml
from autoshard.files.errors import shown
from autoshard.study.whatif.words import SweepError

_KNOWN = ("chip_hour", "watts")
LEAST, MOST = 1e-9, 1e12
"""Of an amount: beyond them costs of tokens and runs are not numbers any more."""


@dataclass(frozen=True, slots=True)
class ChipPrice:
    """Cost of an hour of one chip, and the watts that it draws; None where that is not known."""

    chip_hour: float | None = None
    watts: float | None = None


@dataclass(frozen=True, slots=True)
class Prices:
    """By chip; `currency` names the amounts."""

    chips: tuple[tuple[str, ChipPrice], ...] = ()
    currency: str = "USD"

    def of(self, chip: str) -> ChipPrice:
        """What is known of a chip."""
        return dict(self.chips).get(chip, ChipPrice())

    def require(self, chips: Iterable[str], what: str, objective: str) -> None:
        """Refuse chips of which `what` ("chip_hour" or "watts") is not known.

        Raises:
          SweepError: with all of them.
        """
        lacking = [one for one in dict.fromkeys(chips) if getattr(self.of(one), what) is None]
        if lacking:
            tables = "; ".join(f"[{_key(one)}] {what} = ..." for one in lacking)
            raise SweepError(
                f"the objective {objective} needs the {what} of {', '.join(lacking)}; write into "
                f"the file of prices: {tables}"
            )


def read_prices(path: str | Path) -> Prices:
    """Read a file of prices.

    Raises:
      SweepError: it is not there, is not TOML, or has faults; all of them are named.
    """
    return prices_of(read_toml(path, "the prices", error=SweepError), where=str(path))


def prices_of(data: dict[str, Any], *, where: str) -> Prices:
    """The prices in a table, as of `read_prices`."""
    faults, found = [], []
    currency = data.get("currency", "USD")
    if not isinstance(currency, str):
        faults.append(f"currency = {shown(currency)} must be a text")
    for chip, table in data.items():
        if chip == "currency":
            continue
        if not isinstance(table, dict):
            faults.append(
                f"{chip} = {shown(table)} must be a table: [{_key(chip)}] chip_hour = ..."
            )
            continue
        for name, value in table.items():
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if name not in _KNOWN:
                faults.append(f"{chip}.{name} is not known; known: {', '.join(_KNOWN)}")
            elif not number or not value > 0:
                faults.append(f"{chip}.{name} = {shown(value)} must be a number above 0")
            elif not LEAST <= value <= MOST:
                faults.append(
                    f"{chip}.{name} = {shown(value)} must be a number from {LEAST:g} to {MOST:g}"
                )
        found.append((chip, table))
    if faults:
        raise SweepError("\n  - ".join([f"{where} is faulty:", *faults]))
    return Prices(
        tuple((chip, ChipPrice(**{k: float(v) for k, v in t.items()})) for chip, t in found),
        currency,
    )


def _key(chip: str) -> str:
    return chip if chip.replace("-", "").isalnum() else f'"{chip}"'
