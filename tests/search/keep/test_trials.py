"""What is said of the choices of a search over what is kept."""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from autoshard.plan.plan import Proof
from autoshard.search.keep.trials import among, cheapest_first, dearest_wanted, said_of
from autoshard.solve.limit_hit import LimitHit


def trial(title: str, plan: str | None = None, objective: float = 0.0) -> Any:
    return SimpleNamespace(title=title, plan=plan, objective=objective)


def test_choices_of_one_title_are_counted():
    best = trial("products")
    trials = [best, trial("cheapest"), trial("everything"), trial("cheapest")]
    said = said_of(best, best, trials)
    assert "products, the best of 4 choices (the others: cheapest (2 of them), everything)" in said


def test_a_choice_that_is_not_the_cheapest_is_one_of_them():
    best, other = trial("products"), trial("everything")
    said = said_of(other, best, [best, other])
    assert "everything, one of 2 choices (the others: products)" in said


def test_one_choice_alone_is_not_the_best_of_any():
    alone = trial("products")
    said = said_of(alone, alone, [alone])
    assert said.startswith("what is saved for the backward pass: products; nothing else was tried")


def test_choices_without_a_plan_are_none_of_the_cheapest():
    dear, none, cheap = trial("a", "A", 2.0), trial("b", objective=1.0), trial("c", "C", 0.5)
    assert cheapest_first([dear, none, cheap]) == [(cheap, "C"), (dear, "A")]


def test_a_choice_must_be_among_as_many_as_are_wanted():
    trials = [trial("a", "A", 2.0), trial("b", objective=math.inf), trial("c", "C", 0.5)]
    wanted = [dearest_wanted(trials, count) for count in (1, 2, 3, 4)]
    assert wanted == [0.5, 2.0, math.inf, math.inf]


@dataclass(frozen=True)
class Planned:
    name: str
    proof: Proof


def planned(name: str, bound: float) -> Any:
    return Planned(name, Proof("feasible", 2.0, bound, 1 - bound / 2.0, 1.0, LimitHit.GAP))


def test_plans_of_other_choices_come_by_turns_with_others_of_the_best():
    found = [planned("best", 1.5), planned("second", 1.5), planned("third", 1.5)]
    plans: Any = among(found, [planned("other", 1.9)])
    assert [one.name for one in plans] == ["best", "other", "second", "third"]
    assert {one.proof.bound for one in plans} == {1.5}
