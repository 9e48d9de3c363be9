"""`python -m tests.docs.notebook` runs the notebook of the pages, and writes what it shows."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any

from IPython.core.interactiveshell import InteractiveShell

from tests.docs.pages import DOCS

NOTEBOOK = DOCS / "start" / "notebook.ipynb"
SHOWN = ("text/html", "text/plain")


def executed(notebook: dict[str, Any]) -> dict[str, Any]:
    """The notebook with what its cells show now. Raises what a cell raises."""
    shell = InteractiveShell.instance()
    number = 0
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        number += 1
        outputs: list[dict[str, Any]] = []

        def show(value: Any, outputs: list[dict[str, Any]] = outputs, number: int = number) -> None:
            if value is None:
                return
            data, _ = shell.display_formatter.format(value)
            kept = {kind: data[kind].splitlines(True) for kind in SHOWN if kind in data}
            outputs.append(
                {"output_type": "execute_result", "execution_count": number, "metadata": {}}
                | {"data": kept}
            )

        shell.display_trap.hook = show
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            shell.run_cell("".join(cell["source"])).raise_error()
        if said := printed.getvalue():
            text = said.splitlines(True)
            outputs.insert(0, {"output_type": "stream", "name": "stdout", "text": text})
        cell["outputs"], cell["execution_count"] = outputs, number
    return notebook


if __name__ == "__main__":
    target = Path(sys.argv[1]) if sys.argv[1:] else NOTEBOOK
    made = executed(json.loads(NOTEBOOK.read_text(encoding="utf-8")))
    target.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
