"""Published runs on real machines, and what is predicted of each at its own configuration.

`read_table` reads a table of runs; `question` says which program, machine and mesh a run is;
`answer` prices it, and our own plan beside it; `summary` holds predictions to measurements.
"""

from autoshard.study.measured.answer import Answer, answer
from autoshard.study.measured.question import Question, UnreachableError, question
from autoshard.study.measured.summary import summary
from autoshard.study.measured.table import Run, TableError, read_table

__all__ = [
    "Answer",
    "Question",
    "Run",
    "TableError",
    "UnreachableError",
    "answer",
    "question",
    "read_table",
    "summary",
]
