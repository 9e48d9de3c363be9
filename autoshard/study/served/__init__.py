"""Published points of serving engines, and what bounds them at their own configuration.

`read_points` reads a table of them; `answer` prices one; `autoshard.study.served.page` shows all.
"""

from autoshard.study.served.answer import Bound, answer
from autoshard.study.served.table import Point, read_points

__all__ = ["Bound", "Point", "answer", "read_points"]
