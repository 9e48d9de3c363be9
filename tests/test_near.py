"""What is proposed where a name is none."""

import pytest

from autoshard.near import did_you_mean, hint

OPTIONS = ("--machine", "--mesh", "--meshes", "--require", "--trace", "--time-limit")


@pytest.mark.parametrize(
    ("name", "known", "said"),
    [
        ("--machne", OPTIONS, "did you mean --machine?"),
        ("--mehs", OPTIONS, "did you mean --mesh or --meshes?"),
        ("--zzz", ("a", "b"), ""),
        ("w1", (), ""),
    ],
)
def test_only_what_is_about_as_near_as_the_nearest_is_proposed(name, known, said):
    assert did_you_mean(name, known) == said


def test_where_none_is_near_the_first_names_are_listed():
    assert hint("zzz", "abc") == "; known: a, b, c"
    assert hint("zzz", map(str, range(100))).endswith("6, 7, ...")
    assert hint("0", ()) == ""
