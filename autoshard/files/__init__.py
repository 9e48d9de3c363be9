"""Files, in and out: whole or not at all; text, JSON, TOML and records of their types."""

from autoshard.files.cache import cache_folder
from autoshard.files.errors import FileError
from autoshard.files.read import json_of, read_json, read_text, read_toml, toml_of, where_json_ends
from autoshard.files.table import csv_text
from autoshard.files.typed import Count, NotNegative, Positive, typed
from autoshard.files.write import write_whole

__all__ = [
    "Count",
    "FileError",
    "NotNegative",
    "Positive",
    "cache_folder",
    "csv_text",
    "json_of",
    "read_json",
    "read_text",
    "read_toml",
    "toml_of",
    "typed",
    "where_json_ends",
    "write_whole",
]
