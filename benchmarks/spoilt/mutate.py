"""Ways to spoil a file: its bytes, its text, and one value in it.

A mutation is drawn with `random.Random`, so that a seed and a number give it again.
"""

from __future__ import annotations

import json
import random
import re
from typing import Any

ODD = (
    None, True, False, 0, -1, 1, 2, 7, 1.5, -0.5, 1e-320, 1e308, -1e308,
    2**31, 2**53, 2**63, -(2**63),
    10**30, float("nan"), float("inf"), float("-inf"), "", "x", "NaN", "../../etc/passwd", "a\x00b",
    "\u202e", "<script>alert(1)</script>", "x" * 5000, [], {}, [None], [[]], {"": None}, {"a": 1},
)  # fmt: skip
"""What a value is replaced by."""
ODD_WORDS = (
    "nan", "inf", "-inf", "-1", "0", "1e308", "1e-320",
    "8e12", "8000000000000", "9" * 40, "9" * 5000,
    "true", '""', '"x"', "[]", "[[]]", "{}", "1979-05-27", "0x" + "f" * 40, "'", "[" * 500,
)  # fmt: skip
"""What a word of a text is replaced by."""
DEEP = 3000


def mutated(data: bytes, form: str, draw: random.Random) -> tuple[bytes, str]:
    """Return the spoilt file, and what was done to it.

    Args:
      data: the file.
      form: "json" or "text".
      draw: of which everything random is drawn.
    """
    if form == "json" and draw.random() < 0.7:
        return _json(data, draw)
    if draw.random() < 0.6:
        return _words(data, draw)
    return _bytes(data, draw)


def _json(data: bytes, draw: random.Random) -> tuple[bytes, str]:
    root = {"": json.loads(data)}
    places = list(_places(root))
    done = []
    for _ in range(draw.choice((1, 1, 1, 2, 5))):
        holder, key, path = draw.choice(places)
        how, value = _changed(holder, key, draw)
        done.append(f"{path}: {how}")
        if how == "is gone":
            if isinstance(holder, dict):
                holder.pop(key, None)
            elif key < len(holder):
                del holder[key]
        elif isinstance(holder, dict) or key < len(holder):
            holder[key] = value
        if how == "has another key" and isinstance(holder, dict):
            holder["another"] = value
    text = json.dumps(root.get("", root))
    if draw.random() < 0.02:
        text = '{"a":' * DEEP + text + "}" * DEEP
        done.append("nested deeply")
    return text.encode("utf-8", "surrogatepass"), "; ".join(done)


def _changed(holder: Any, key: Any, draw: random.Random) -> tuple[str, Any]:
    if not isinstance(holder, dict) and key >= len(holder):
        return "is gone", None
    value = holder.get(key) if isinstance(holder, dict) else holder[key]
    ways = ["odd", "odd", "odd", "gone", "another", "other form"]
    number = isinstance(value, int | float) and not isinstance(value, bool)
    way = draw.choice([*ways, "scaled", "scaled"] if number else ways)
    if way == "gone":
        return "is gone", None
    if way == "another":
        return "has another key", value
    if way == "scaled":
        try:
            value = value * draw.choice((-1, 0, 1e-9, 0.5, 2, 1000, 10**12))
        except OverflowError:
            value = 0
        return f"is {value!r}", value
    if way == "other form":
        other = [value] if draw.random() < 0.5 else {"a": value}
        value = str(value) if draw.random() < 0.5 else other
        return "has another form", value
    value = draw.choice(ODD)
    return f"is {str(value)[:30]!r}", value


def _places(root: Any) -> list[tuple[Any, Any, str]]:
    found = []
    pending = [(root, "")]
    while pending:
        holder, path = pending.pop()
        entries = holder.items() if isinstance(holder, dict) else enumerate(holder)
        for key, value in entries:
            here = f"{path}.{key}" if path else str(key)
            found.append((holder, key, here))
            if isinstance(value, dict | list):
                pending.append((value, here))
    # A long list of numbers is drawn as often as a short one.
    return [one for one in found if not isinstance(one[1], int) or one[1] < 3]


def _words(data: bytes, draw: random.Random) -> tuple[bytes, str]:
    text = data.decode()
    words = list(re.finditer(r"[\w.+-]+", text))
    if not words:
        return b"", "is empty"
    done = []
    for _ in range(draw.choice((1, 1, 2))):
        word = draw.choice(words)
        new = draw.choice(ODD_WORDS)
        if draw.random() < 0.2:
            new = draw.choice(words)[0]
        text = text[: word.start()] + new + text[word.end() :]
        done.append(f"{word[0][:20]!r} is {new[:20]!r}")
        words = list(re.finditer(r"[\w.+-]+", text)) or [word]
    return text.encode("utf-8", "surrogatepass"), "; ".join(done)


def _bytes(data: bytes, draw: random.Random) -> tuple[bytes, str]:
    at = draw.randrange(len(data) + 1)
    way = draw.choice(("cut", "flip", "flip", "insert", "repeat", "drop", "utf16", "bom", "empty"))
    if way == "cut":
        return data[:at], f"cut at {at}"
    if way == "flip":
        spoilt = bytearray(data)
        for _ in range(draw.choice((1, 3, 20))):
            spoilt[draw.randrange(len(data))] = draw.randrange(256)
        return bytes(spoilt), "bytes are others"
    if way == "insert":
        more = draw.choice((b"\x00", b"\xff", b"}", b"]", b'"', b"\n", b"[" * DEEP, b"\xc3"))
        return data[:at] + more + data[at:], f"{more[:5]!r} at {at}"
    if way == "repeat":
        return data + data, "twice"
    if way == "drop":
        end = at + draw.randrange(1, 40)
        return data[:at] + data[end:], f"bytes {at} to {end} are gone"
    if way == "utf16":
        return data.decode().encode("utf-16"), "in UTF-16"
    return (b"\xef\xbb\xbf" + data, "with a mark") if way == "bom" else (b"", "is empty")
