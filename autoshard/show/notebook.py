"""Plans that show themselves in a notebook, as a page's verdict, schemes and layouts."""

from __future__ import annotations

from typing import Any


def register(shell: Any) -> None:
    """Let an IPython `shell` show a `Plan` as HTML; nothing is imported until one is shown."""
    html = shell.display_formatter.formatters["text/html"]
    html.for_type_by_name("autoshard.plan.plan", "Plan", _fragment)


def _fragment(plan: Any) -> str:
    from autoshard.show.page import fragment

    return fragment(plan)
