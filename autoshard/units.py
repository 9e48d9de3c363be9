"""Numbers with their units, and text, as people read them."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

_FACTORS = {
    "": 1, "b": 1,
    "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_UNITS = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def parse_size(text: str) -> float:
    """Bytes of `60GiB`, `80e9` or `512 MB`.

    Raises:
      ValueError: it is not a size, or none above 0.
    """
    match = re.fullmatch(r"([\d.]+(?:e\+?\d+)?)\s*([a-z]*)", text.strip().lower())
    if match is None or match[2] not in _FACTORS:
        raise ValueError(f"{text!r} is not a size; write 60GiB, 80GB or bytes")
    try:
        number = float(match[1]) * _FACTORS[match[2]]
    except ValueError as error:
        raise ValueError(f"{text!r} is not a size; write 60GiB") from error
    if number <= 0:
        raise ValueError(f"{text!r} is not an amount of memory; write 60GiB")
    return number


def counted(number: int, noun: str, form: str = "") -> str:
    """A number with its noun: `1 value`, `2 axes`, `1,024 rows`.

    Args:
      noun: in the singular, with words before it where there are some, as `fake device`.
      form: of the number, as `,` for groups of thousands.
    """
    if number != 1:
        *before, last = noun.split(" ")
        if last.endswith("y") and last[-2] not in "aeiou":
            last = f"{last[:-1]}ies"
        elif last.endswith("axis"):
            last = f"{last[:-2]}es"
        else:
            last += "es" if last.endswith(("s", "x", "z", "ch", "sh")) else "s"
        noun = " ".join((*before, last))
    return f"{number:{form}} {noun}"


def format_seconds(seconds: float) -> str:
    """Four digits with a unit: `1.252 s`, `12.53 ms`, `3.100 us`, `120.0 ns`."""
    if not math.isfinite(seconds):
        return "-"
    if abs(seconds) < 1e-12:  # what is left of rounding
        return "0 s"
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")):
        # The unit changes where four digits would round up to the next one.
        if abs(seconds) >= scale * 0.99995 or unit == "ns":
            number = float(f"{seconds / scale:.4g}")
            return f"{number:.{max(0, 3 - _magnitude(number))}f} {unit}"
    raise AssertionError


def seconds_like(seconds: float, whole: float) -> str:
    """Seconds in the unit in which `format_seconds` writes `whole`: `0.5 s` of `2.675 s`."""
    unit = format_seconds(whole).rpartition(" ")[2]
    scale = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}.get(unit, 1.0)
    return f"{seconds / scale:.6g} {unit}"


def format_bytes(count: float) -> str:
    """Three digits with a binary unit: `6.06 GiB`, `512 B`."""
    if not math.isfinite(count):
        return "unlimited"
    for scale, unit in _UNITS:
        if count >= scale:
            number = float(f"{count / scale:.3g}") if count < 1000 * scale else count / scale
            return f"{number:.{max(0, 2 - _magnitude(number))}f} {unit}"
    return f"{count:.0f} B"


def format_unit(value: float, unit: str) -> str:
    """Three digits with a unit and its prefix: `3.35 TB/s`, `6.500 us`, `74.0 GiB`, `0.75`.

    Args:
      value: in `unit`.
      unit: `s`, `B`, a rate such as `B/s` or `FLOP/s`, `FLOP`, or empty for what has none.
    """
    if unit == "s":
        return format_seconds(value)
    if unit == "B":
        return format_bytes(value)
    if not unit or not math.isfinite(value):
        return f"{value:.4g}"
    for scale, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, "")):
        if abs(value) >= scale * 0.9995 or scale == 1.0:
            return f"{value / scale:.3g} {prefix}{unit}"
    raise AssertionError


def format_number(value: float) -> str:
    """Three digits of what is not negative and has no unit: `133,594`, `0.05`, `20 u`, `3 m`."""
    scales = ((1e-2, 1.0, ""), (1e-4, 1e3, "m"), (1e-7, 1e6, "u"), (0.0, 1e9, "n"))
    _, factor, prefix = next(one for one in scales if value >= one[0] or value == 0)
    number = value * factor
    text = f"{number:,.0f}" if number >= 100 else f"{number:.3g}"
    return f"{text} {prefix}".rstrip()


def format_percent(share: float, form: str = ".1f") -> str:
    """A share in percent, as SI writes it: `36.9 %`, with a form `+.2f` as `+2.00 %`."""
    return f"{100 * share:{form}} %"


def with_article(noun: str) -> str:
    """A noun with its article: `a plan`, `an answer`."""
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def listed(names: Sequence[str]) -> str:
    """Names in a sentence: `a`, `a and b`, `a, b and c`."""
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def them(names: Sequence[str]) -> str:
    """What a sentence calls so many names later on: `it`, `them`."""
    return "it" if len(names) == 1 else "them"


def format_gap(gap: float) -> str:
    """A gap in percent, never rounded to nothing: `0.93 %`, `0 %`, `< 0.01 %`."""
    if not math.isfinite(gap):
        return "unknown"
    if gap <= 1e-8:
        return "0 %"
    return "< 0.01 %" if gap < 1e-4 else format_percent(gap, ".2f")


_NUMBER_WITH_UNIT = re.compile(
    r"([0-9]) (?=(?:%|[mun]?s|[KMGT]iB|[kMGTP]?(?:B|FLOP)(?:/s)?)(?![\w/]))"
)
"""A space that no line ends at."""


def held_together(text: str) -> str:
    """A text in which no line ends between a number and its unit."""
    return _NUMBER_WITH_UNIT.sub("\\1\N{NO-BREAK SPACE}", text)


def _magnitude(number: float) -> int:
    return math.floor(math.log10(abs(number))) if number else 0


_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufffe\uffff]")


def visible(text: str) -> str:
    """Text with what no reader sees, and no XML may hold, written out: `\\x1b`, `\\ud800`."""
    return _UNSEEN.sub(lambda found: ascii(found[0])[1:-1], text)
