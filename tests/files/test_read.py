"""What is read is plain, bounded data; everything else is refused with one line."""

from __future__ import annotations

import pytest

from autoshard.files import FileError, read_json, read_text, read_toml

DEEP = 200_000
TOO_DEEP = "'file' is damaged: it is nested more than 100 deep"


def refused(tmp_path, read, data: bytes) -> str:
    path = tmp_path / "file"
    path.write_bytes(data)
    with pytest.raises(FileError) as caught:
        read(path, "the plan")
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 300
    return message.replace(str(path), "file")


def with_repair(message):
    """What is damaged is to be copied or made again."""
    return f"{message}; copy it again, or make it anew" if "damaged" in message else message


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "'file' is damaged: no JSON at line 1, column 1, where the file ends"),
        (b'{"a": 1', "'file' is damaged: no JSON at line 1, column 8, where the file ends"),
        (b'{"a": "\xff"}', "'file' is damaged: it is not text (byte 8)"),
        (b"[" * DEEP + b"]" * DEEP, TOO_DEEP),
        (
            b'{"a":' * DEEP + b"1" + b"}" * DEEP,
            "'file' is damaged: it is nested more than 100 deep",
        ),
        (b"[" * 101 + b"[]" + b"]" * 101, TOO_DEEP),
        (b'{"a": {"b": [0, NaN]}}', "'file': a.b[1] is nan; it must be finite"),
        (b'{"a": -Infinity}', "'file': a is -inf; it must be finite"),
        (b"[1e999]", "'file': [0] is inf; it must be finite"),
        (b'{"a": 9223372036854775808}', "'file': a is 9223372036854775808; it is too large"),
        (b"[" + b"9" * 4000 + b"]", "'file': [0] is a number of 4000 digits; it is too large"),
        (b"[" + b"9" * 9000 + b"]", "'file' is damaged: a number has too many digits"),
    ],
)
def test_json_that_is_refused(tmp_path, data, message):
    assert refused(tmp_path, read_json, data) == with_repair(message)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"a = [", "file is not TOML: Invalid value (at end of document); mend that line"),
        (b"a = nan", "'file': a is nan; it must be finite"),
        (b"[b]\na = inf", "'file': b.a is inf; it must be finite"),
        (b"a = " + b"[" * DEEP + b"]" * DEEP, TOO_DEEP),
        (b"a = " + b"9" * 9000, "'file' is damaged: a number has too many digits"),
        (b"a = 0x" + b"f" * 32, f"'file': a is {2**128 - 1}; it is too large"),
    ],
)
def test_toml_that_is_refused(tmp_path, data, message):
    assert refused(tmp_path, read_toml, data) == with_repair(message)


def test_what_cannot_be_read_says_why(tmp_path):
    for path, reason in (
        (tmp_path / "none", "No such file or directory"),
        (tmp_path, "Is a directory"),
        ("a\0b", "embedded null byte"),
    ):
        with pytest.raises(FileError) as caught:
            read_text(path, "the plan")
        assert str(caught.value) == f"cannot read the plan {str(path)!r}: {reason}"
    with pytest.raises(FileError, match=r"^'/dev/zero' is not a plan: it is longer than \d"):
        read_text("/dev/zero", "the plan")


def test_what_is_plain_is_read(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b'\xef\xbb\xbf{"a": [1, -2.5e300, 9223372036854775807]}')
    assert read_json(path, "the plan") == {"a": [1, -2.5e300, 2**63 - 1]}
