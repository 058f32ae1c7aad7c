"""The quick profile: a few cases of every kind, always the same ones, and a machine that Hypothesis drives."""

from __future__ import annotations

import functools
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

import hamlearn as hl
from tests.fuzz import cases, differential
from tests.fuzz.session import Diverged, Session

QUICK = {"learner": 10, "sgd": 3, "reference": 3, "local": 8, "population": 2, "agents": 2, "optimizer": 6}
VARIANTS = 8
DELICATE = (
    *("tied", "tied rate", "split", "gain", "gain rnn", "hook", "one-hot", "dropout rnn", "counter rnn"),
    *("batch norm rnn", "keys in another order", "namedtuple", "rnn"),
)


@functools.cache
def delicate() -> list[int]:
    """Seeds of cases with such networks, found when they are asked for: to draw them all takes a second."""
    return [seed for seed in range(600) if cases.draw_spec(Random(seed), seed, VARIANTS).network in DELICATE]


@pytest.fixture(autouse=True)
def _quiet() -> None:
    differential.quiet()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "seed"), [(kind, seed) for kind, count in QUICK.items() for seed in range(count)]
)
def test_three_judges_agree_on_a_case_drawn_from_one_integer(kind, seed):
    differential.one(kind, seed, VARIANTS)


class Machine(RuleBasedStateMachine):
    """Operations in any order; Hypothesis prints those that led to a failure."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory()
        self.session: Session | None = None

    @initialize(seed=st.deferred(lambda: st.sampled_from(delicate())))
    def make(self, seed: int) -> None:
        try:
            self.session = Session(cases.draw_spec(Random(seed), seed, VARIANTS), Path(self.folder.name))
        except hl.errors.ConfigError:
            self.session = None

    @rule(seed=st.integers(0, 99))
    def any_operation(self, seed: int) -> None:
        if self.session is not None:
            self.do(cases.draw_op(Random(seed), self.session.spec))

    @rule(
        count=st.sampled_from([1, 3]), chunk=st.sampled_from([1, 2, 256]), mode=st.sampled_from(["end", "leave"])
    )
    def compiled(self, count: int, chunk: int, mode: str) -> None:
        if self.session is not None:
            self.do(("compiled", count, chunk, mode))

    @rule(count=st.sampled_from([1, 4]))
    def step(self, count: int) -> None:
        if self.session is not None:
            self.do(("step", count))

    @rule(value=st.sampled_from([0.5, 2.0]), chunk=st.sampled_from([2, 256]))
    def turn(self, value: float, chunk: int) -> None:
        for op in (("compiled", 2, chunk, "end"), ("turn", value), ("compiled", 2, chunk, "end")):
            if self.session is not None:
                self.do(op)

    @rule(where=st.sampled_from(["self", "fresh", "earlier"]))
    def load(self, where: str) -> None:
        if self.session is not None:
            self.do(("load", where))

    def do(self, op: cases.Op) -> None:
        try:
            self.session.do(op)
        except Diverged:
            self.session = None

    def teardown(self) -> None:
        self.folder.cleanup()


@pytest.mark.slow
def test_no_interleaving_of_operations_parts_a_learner_from_its_judges():
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=8,
            stateful_step_count=6,
            derandomize=True,
            # A failure has six steps at most, and is the same in every run: to make it smaller takes minutes.
            phases=[Phase.generate],
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
