"""The state of a search for words: the best one, a pool of good ones, the bound; and its rounds."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from autoshard.solve.schedule.optimise.anneal import anneal
from autoshard.solve.schedule.optimise.flat import Flat, flatten
from autoshard.solve.schedule.optimise.kernels import NEVER
from autoshard.solve.schedule.optimise.outcome import ScheduleProgress
from autoshard.solve.schedule.optimise.refill import refilled
from autoshard.solve.schedule.optimise.rules import (
    Rule,
    Scratch,
    guides_of,
    listed,
    mutated,
    random_rules,
    scratch,
    value_of,
    words_of,
)
from autoshard.solve.schedule.task import Order

POOL = 8
"""Words that are kept to go on from."""
LIST_RULES, FEWEST_RULES = 300, 20
"""Priority rules that are tried: so many for small problems, and at least for large ones."""
LIST_WORK = 3 * 10**7
"""Tasks times meshes that all rules together schedule, about, at most."""
PARENTS = 12
"""Rules of different values that mutations start from."""
EVOLVE_EVERY, ROUND_RULES = 7, 4
"""Each so-many-th round tries mutated rules, this part of the number at first, and anneals not."""
ROUND_WORK = 6 * 10**7
"""Tasks that the words of one round of annealing have together, about."""
PAIR_STEPS = 100
"""Steps of a round for every pair of tasks, at most: small problems are soon asked of CP-SAT."""
FEWEST_STEPS = 500
GROWTH = 1.5
"""How much longer each turn through the temperatures is than the one before."""
TEMPERATURES = ((1.0, 0.001), (0.3, 0.01), (1.0, 0.0), (0.1, 0.02), (0.5, 0.003), (3.0, 0.002))
"""First temperature, in mean task times, and weight of the ends' sum, round by round."""
COOLING = 30.0
"""How much lower the last temperature of a round is than its first."""
REACH = 12
"""How many places a task is moved at most."""


@dataclass(slots=True)
class Search:
    """A search that is under way; what it finds stays when it is interrupted.

    Attributes:
      flats: the problem with different stages fused; the best so far belongs to `flat`.
      bound, value: in ticks.
      deadline, started: in seconds of `time.monotonic`.
    """

    flats: list[Flat]
    bound: int
    gap: float
    deadline: float
    started: float
    seed: int
    progress: Callable[[ScheduleProgress], None] | None
    value: int = NEVER
    word: np.ndarray | None = None
    found_by: str = ""
    rounds: int = 0
    first_rounds: int = 6
    flat: Flat = field(init=False)
    pool: list[tuple[int, np.ndarray]] = field(default_factory=list)
    parents: list[tuple[int, Rule]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.flat = self.flats[0]

    @property
    def done(self) -> bool:
        """Whether the best is proven to be close enough."""
        return self.word is not None and self.value - self.bound <= self.gap * self.value

    @property
    def late(self) -> bool:
        """Whether the time is over."""
        return time.monotonic() >= self.deadline

    def begin(self, orders: Iterable[Order]) -> None:
        """Fill the pool, from orders and by rules, for each way to fuse; keep the best way."""
        orders = list(orders)
        found = []
        for flat in self.flats:
            self.flat, self.pool = flat, []
            best = self.value
            room = scratch(flat)
            for word in words_of(flat, orders, room):
                self.offer(word, value_of(flat, word, room), "a named or given order")
            number = self._number_of_rules()
            guides = guides_of(flat, orders, room)
            rules = random_rules(flat, guides, np.random.default_rng(self.seed))
            self.parents = []
            for rule in itertools.islice(rules, number):
                self.try_rule(rule, room)
                if self.done or (self.late and self.word is not None):
                    break
            self._refill(orders, room)
            self.evolve(number)
            found.append((self.value < best, flat, self.pool, self.parents))
            self.tell("starts")
        for better, flat, pool, parents in found:
            if better:
                self.flat, self.pool, self.parents = flat, pool, parents

    def _refill(self, orders: Iterable[Order], room: Scratch) -> None:
        """Take into the pool what orders become when their W are put anew."""
        words = {word.tobytes(): word for word in map(self.flat.word, orders)}
        for word in words.values():
            if word.size != self.flat.arrays.word_start[-1]:
                continue
            for better in refilled(self.flat, word):
                if self.done or (self.late and self.word is not None):
                    return
                value = value_of(self.flat, better, room)
                self.offer(better, value, "an order with W put anew")

    def try_rule(self, rule: Rule, room: Scratch) -> None:
        """Take the word that a rule leads to into the pool, and a good rule among the parents."""
        for word in listed(self.flat, [rule], room):
            value = value_of(self.flat, word, room)
            self.offer(word, value, "a priority rule")
            if all(value != other for other, _ in self.parents):
                self.parents.append((value, rule))
                self.parents.sort(key=lambda entry: entry[0])
                del self.parents[PARENTS:]

    def evolve(self, number: int) -> None:
        """Try so many mutations of the best rules."""
        dice = np.random.default_rng((self.seed, self.rounds, number))
        room = scratch(self.flat)
        for _ in range(number):
            if self.done or self.late or not self.parents:
                break
            pick = int(len(self.parents) * dice.random() ** 2)
            self.try_rule(mutated(self.parents[pick][1], self.flat, dice), room)
        self.tell("priority rules")

    def refine_fusion(self) -> None:
        """Where there are ways to fuse, try to change each stage by itself."""
        if len(self.flats) == 1:
            return
        for stage in range(self.flat.instance.stages):
            if self.done or self.late:
                return
            fused = {s for kind, s in self.flat.letters if kind == "BW"} ^ {stage}
            assert self.word is not None
            kept = self.flat, self.pool, self.parents
            before = self.value
            order = self.flat.order(self.word)
            self.flat = flatten(self.flat.instance, self.flat.objective, fused)
            self.pool, self.parents = [], []
            room = scratch(self.flat)
            for word in words_of(self.flat, [order], room):
                self.offer(word, value_of(self.flat, word, room), "a change of what is fused")
            rules = random_rules(self.flat, [], np.random.default_rng(self.seed))
            for rule in itertools.islice(rules, FEWEST_RULES):
                self.try_rule(rule, room)
            if self.pool:
                self.one_round()
            if self.value >= before:
                self.flat, self.pool, self.parents = kept

    def offer(self, word: np.ndarray, value: int, by: str) -> None:
        """Take a word of `flat` into the pool, and note it if it is the best."""
        if value >= NEVER:
            return
        if value < self.value:
            self.value, self.word, self.found_by = value, word.copy(), by
        if all(value != other or not np.array_equal(word, w) for other, w in self.pool):
            self.pool.append((value, word.copy()))
            self.pool.sort(key=lambda entry: entry[0])
            del self.pool[POOL:]

    def anneal(self, rounds: int | None) -> None:
        """So many rounds of annealing, or as many as there is time for."""
        while not self.done and not self.late and rounds != 0:
            self.one_round()
            rounds = None if rounds is None else rounds - 1

    def one_round(self) -> None:
        """Anneal a word of the pool: the best every other time, else one after the other.

        Now and then the rules are improved instead, which is what helps with large problems.
        """
        if self.rounds % EVOLVE_EVERY == EVOLVE_EVERY - 1 and self.parents:
            self.evolve(self._number_of_rules() // ROUND_RULES)
            self.rounds += 1
            return
        arrays = self.flat.arrays
        unit = float(arrays.time.mean())
        hot, share = TEMPERATURES[self.rounds % len(TEMPERATURES)]
        turn = self.rounds // len(TEMPERATURES)
        tasks = int(arrays.word_start[-1])
        most = min(ROUND_WORK / tasks, PAIR_STEPS * tasks**2)
        steps = max(FEWEST_STEPS, int(most * GROWTH ** min(turn, 8)))
        pick = 0 if self.rounds % 2 == 0 else self.rounds // 2 % len(self.pool)
        word, best = self.pool[pick][1].copy(), self.pool[pick][1].copy()
        value = anneal(
            arrays, word, best, self.bound, steps, hot * unit, hot * unit / COOLING, share, REACH,
            np.random.default_rng((self.seed, self.rounds)),
        )  # fmt: skip
        self.rounds += 1
        self.offer(best, int(value), "annealing")
        self.tell("annealing")

    def _number_of_rules(self) -> int:
        work = int(self.flat.arrays.word_start[-1]) * self.flat.instance.meshes
        return min(LIST_RULES, max(FEWEST_RULES, LIST_WORK // work))

    def raise_bound(self, ticks: float) -> None:
        """Note a bound; one that is no better than what is known changes nothing."""
        if np.isfinite(ticks):
            self.bound = min(max(self.bound, int(np.ceil(ticks - 1e-6))), self.value)

    def tell(self, phase: str) -> None:
        """Tell the caller what is known."""
        if self.progress is not None:
            value = None if self.word is None else self.flat.time(self.value)
            seconds = time.monotonic() - self.started
            self.progress(ScheduleProgress(phase, value, self.flat.time(self.bound), seconds))
