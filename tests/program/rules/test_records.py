"""Rules as records: their text reads back, and what cannot be a rule is refused."""

from __future__ import annotations

import re

import pytest

from autoshard.program.rules.ask_shardy import Factor, FactorKind, Rule


@pytest.mark.parametrize(
    "text",
    [
        "([i, k], [k, j])->([i, j]) {i=8, j=16, k=8} reduction={k}",
        "([i, jk])->([ij, k]) {i=4, j=2, k=6}",
        "([])->([])",
        "()->([i]) {i=4}",
        "([i, 1], [1])->([i]) {i=4}",
        "([i, j])->([i]) {i=2, j=3} reduction={j:max}",
        "([<batch heads>, i])->([batch, heads, i]) {batch=2, heads=3, i=4} permutation={i}",
        "([i, z_1z_12])->([i, z_1, z_12]) {i=2, z_1=3, z_12=4} blocked_propagation={z_12}",
    ],
)
def test_rules_can_be_read_back(text: str) -> None:
    assert str(Rule.parse(text)) == text
    assert Rule.parse(str(Rule.parse(text))) == Rule.parse(text)


def test_wrong_records_are_refused() -> None:
    with pytest.raises(ValueError, match="factor i of kind REDUCE has operator None"):
        Factor("i", 4, FactorKind.REDUCE)
    i = Factor("i", 4)
    with pytest.raises(
        ValueError, match="factor names i, i are not all different; name each factor once"
    ):
        Rule((i, i), (((0,),),), (((1,),),))
    with pytest.raises(ValueError, match=re.escape("[i, i] uses a factor twice")):
        Rule((i,), (((0,), (0,)),), ())
    with pytest.raises(ValueError, match="names a factor that is not there; the 1 factors have"):
        Rule((i,), (((1,),),), ())
    with pytest.raises(ValueError, match=re.escape("cannot read the rule 'i j -> k'")):
        Rule.parse("i j -> k")
