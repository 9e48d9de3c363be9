"""`python -m tests.messages [WORD]`: every message of the package, in one list to be read.

A message is text that stands in `raise`, in a call of what ends in `Error` or is `warn` or `error`,
or that is printed to stderr. What is put in as it runs is written as `{name}`. With a word, only
messages that hold it.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import autoshard

ROOT = Path(autoshard.__file__).parent
SAYING = ("warn", "error")


@dataclass(frozen=True, slots=True)
class Message:
    """One message: where it stands, and its text with `{...}` for what is put in."""

    place: str
    text: str


def messages(root: Path = ROOT) -> list[Message]:
    """All messages of the modules below `root`, by file and line."""
    return [message for file in sorted(root.rglob("*.py")) for message in of_file(file, root)]


def of_file(file: Path, root: Path) -> Iterator[Message]:
    """The messages of one module, each once."""
    seen: set[tuple[int, str]] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Raise) and node.exc is not None:
            said = node.exc.args if isinstance(node.exc, ast.Call) else ()
        elif isinstance(node, ast.Call) and is_saying(node):
            said = node.args
        else:
            continue
        for text in (written(part) for part in said):
            if text and " " in text and (node.lineno, text) not in seen:
                seen.add((node.lineno, text))
                yield Message(f"{file.relative_to(root.parent)}:{node.lineno}", text)


def is_saying(call: ast.Call) -> bool:
    """Whether a call makes an error, warns, or prints to stderr."""
    name = getattr(call.func, "attr", getattr(call.func, "id", ""))
    if name == "print":
        return any(
            word.arg == "file" and "stderr" in ast.unparse(word.value) for word in call.keywords
        )
    return name.endswith("Error") or name in SAYING


def written(node: ast.expr) -> str:
    """The text of an expression, with `{...}` for what is put in; empty where it is none."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(
                f"{{{ast.unparse(part.value)}}}"
                if isinstance(part, ast.FormattedValue)
                else written(part)
                for part in values
            )
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return written(left) + written(right)
        case ast.IfExp(body=body, orelse=other):
            return written(body) or written(other)
    return ""


def main() -> None:
    """Print them."""
    word = sys.argv[1] if len(sys.argv) > 1 else ""
    for message in messages():
        if word in message.text:
            lines = message.text.rstrip("\n").split("\n")
            print(message.place, *(f"    {line}" for line in lines), sep="\n")


if __name__ == "__main__":
    main()
