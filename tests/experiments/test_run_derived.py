"""The keys of a configuration are the arguments of what is built from it, with their defaults and errors."""

import dataclasses
import inspect
from typing import Literal

import pytest
import torch
from torch import nn

import hamlearn as hl
from hamlearn import streams
from hamlearn.credit import CREDITS
from hamlearn.errors import ConfigError
from hamlearn.experiments import run_keys, run_sections, run_streams
from hamlearn.experiments.run_build import build_learner, build_network, build_stream
from hamlearn.experiments.run_config import check
from hamlearn.experiments.run_derived import LIMITS, keys_of
from hamlearn.integrators import INTEGRATORS
from hamlearn.interop.river import from_river
from hamlearn.serve import settings

NOT_IN_A_FILE = {
    hl.Learner: {"network": "[network]", "loss": "[loss]", "hyper": "[hyper]"},
    hl.Learner.run: {"self": "", "stream": "[stream]"},
    run_sections.Run: {},
    from_river: {"dataset": "stream.kind", "dtype": "run.dtype"},
    streams.live: {"dtype": "run.dtype", "target_dtype": "run.dtype", "clock": "a function"},
}
"""Arguments that no key says, and what does."""

OWNERS = [
    hl.Learner,
    hl.Learner.run,
    hl.Hyper,
    *run_keys.RULES.values(),
    *CREDITS.values(),
    *INTEGRATORS.values(),
    *run_streams.MAKERS.values(),
    *run_streams.BROKERS.values(),
    from_river,
    *(wrap for wrap, _ in run_streams.AROUND.values()),
    run_sections.Run,
    run_sections.Net,
    run_sections.Loss,
    run_sections.Pipeline,
    run_sections.Records,
    run_sections.Checkpoint,
    settings.Serve,
]


def plain(default):
    for classes in run_keys.PARTS.values():
        for name, kind in classes.items():
            if type(default) is kind:
                return name
    return list(default) if isinstance(default, tuple) else default


@pytest.mark.parametrize("owner", OWNERS, ids=lambda owner: owner.__qualname__)
def test_every_argument_is_a_key_with_its_default_and_its_meaning(owner):
    keys, parameters = keys_of(owner), inspect.signature(owner).parameters
    left_out = NOT_IN_A_FILE.get(owner, {"dtype": "run.dtype", "stream": "[stream]"})
    assert [name for name in parameters if name not in left_out] == list(keys)
    for name, key in keys.items():
        default = parameters[name].default
        assert key.required == (default is inspect.Parameter.empty)
        assert key.required or (key.default == plain(default) and type(key.default) is type(plain(default)))
        assert key.meaning, f"{owner.__qualname__} says nothing of {name}"
        assert key.allowed


def test_every_key_of_every_owner_is_accepted_by_one_table():
    tables = run_keys.accepted()
    keys = {(table.name, name) for table in tables for name in table.keys}
    elsewhere = {*run_keys.ELSEWHERE, *(argument for _, argument in run_streams.AROUND.values())}
    sections = {
        "learner": [hl.Learner, hl.Learner.run, *CREDITS.values(), *INTEGRATORS.values(), run_sections.Pipeline],
        "hyper": [hl.Hyper, *run_keys.RULES.values()],
        "stream": [
            *run_streams.MAKERS.values(),
            *run_streams.BROKERS.values(),
            *(wrap for wrap, _ in run_streams.AROUND.values()),
            from_river,
        ],
    }
    for section, owners in sections.items():
        for owner in owners:
            wanted = {(section, name) for name in keys_of(owner) if name not in elsewhere or name == "lags"}
            assert wanted <= keys, owner
    assert {table.name for table in tables} == {"stream", *run_keys.SECTIONS}
    assert all(table.about for table in tables)


def test_no_two_owners_in_one_table_claim_one_name():
    learner = [keys_of(hl.Learner), keys_of(hl.Learner.run), keys_of(run_sections.Pipeline)]
    credits = [keys_of(kind) for kind in (*CREDITS.values(), *INTEGRATORS.values())]
    names = [name for keys in (*learner, *credits) for name in keys]
    assert len(names) == len(set(names))
    for kind in (*run_streams.MAKERS, *run_streams.BROKERS, "river."):
        assert not set(run_streams.stream_keys(kind)) & set(run_streams.WRAPPERS), kind


def test_every_limit_is_one_of_an_argument_that_exists():
    for name, bounds in LIMITS.items():
        for kind in bounds:
            owners = [*OWNERS, hl.distributed.PipelineLearner]
            hints = [str(inspect.signature(owner).parameters.get(name, "")) for owner in owners]
            assert any(kind.__name__ in hint or "Categories" in hint for hint in hints), (name, kind)


@dataclasses.dataclass(frozen=True)
class Faded(hl.Forward):
    """A credit that nobody has written yet.

    Args:
        rate: How fast it fades.
        shape: Of the fading.
    """

    rate: float = 0.5
    shape: Literal["line", "curve"] = "line"

    def __post_init__(self):
        if self.rate > 1:
            raise ConfigError(f"rate={self.rate} must be at most 1")


def config(**sections):
    return check({"stream": {"kind": "signals.henon"}, **sections})


def test_a_new_credit_brings_its_arguments_into_the_file(monkeypatch):
    with pytest.raises(ConfigError, match=r'learner.credit = .faded. is not allowed. Allowed is one of "forward"'):
        config(learner={"credit": "faded"})
    monkeypatch.setitem(CREDITS, "faded", Faded)
    found = config(learner={"credit": "faded", "rate": 0.25})["learner"]
    assert (found["credit"], found["rate"], found["shape"]) == ("faded", 0.25, "line")
    network = hl.Network.recurrent(nn.RNNCell(1, 2), nn.Linear(2, 1))
    assert build_learner(config(learner={"credit": "faded", "rate": 1}), network).credit == Faded(1)
    for learner, message in (
        ({"credit": "faded", "rate": 2}, "learner.rate = 2 is not allowed: rate=2 must be at most 1"),
        ({"credit": "faded", "shape": "round"}, 'learner.shape = .round. .* Allowed is one of "line", "curve"'),
        (
            {"rate": 0.5},
            "learner.rate = 0.5 is not allowed with credit 'cleared'. It belongs to credit = \"faded\"",
        ),
    ):
        with pytest.raises(ConfigError, match=message):
            config(learner=learner)


def ramp(slope: float = 1.0, width: int = 1, seed: int = 0) -> streams.Stream:
    """A stream that nobody has written yet."""
    if width < 1:
        raise ConfigError(f"width={width} leaves no input. Give 1 or more.")
    return streams.from_iterable([hl.Sample(torch.full((width,), slope), torch.ones(1))])


def test_a_new_stream_brings_its_arguments_into_the_file(monkeypatch, tmp_path):
    monkeypatch.setitem(run_streams.MAKERS, "ramp", ramp)
    found = check({"stream": {"kind": "ramp", "slope": 3, "width": 2, "hold": 2}})
    stream, _ = build_stream(found, tmp_path)
    assert [sample.u.tolist() for sample in stream] == [[3.0, 3.0]] * 2
    with pytest.raises(ConfigError, match=r"stream.width = 0 is not allowed: width=0 leaves no input"):
        build_stream(check({"stream": {"kind": "ramp", "width": 0}}), tmp_path)
    with pytest.raises(ConfigError, match=r"key stream.sloep of ramp is not known. Did you mean 'slope'"):
        check({"stream": {"kind": "ramp", "sloep": 1}})


def test_what_python_has_and_files_lacked_can_be_said():
    learner = {
        "order": "parallel",
        "credit": "forward",
        "integrator": "rk4",
        "on_nonfinite": "ignore",
        "late": 7,
    }
    found = config(learner=learner, hyper={"clock": "continuous"})
    made = build_learner(found, hl.Network.recurrent(nn.RNNCell(1, 2), nn.Linear(2, 1)))
    assert isinstance(made.integrator, hl.RK4)
    assert (made.on_nonfinite, made.late, made.order) == ("ignore", 7, "parallel")
    found = config(learner={"credit": "echo", "every": 4, "dissipate": "token", "memory": "reversible"})
    cell = hl.reversible.MidpointCell(hl.reversible.AntisymmetricLinear(2, 1), 2, tau=0.1)
    made = build_learner(found, hl.Network.recurrent(cell, nn.Linear(2, 1)))
    assert made.credit == hl.Echo(every=4, dissipate="token", memory="reversible")


def test_the_errors_of_a_file_are_those_of_python_with_the_key_before_them(tmp_path):
    for section, given, make in (
        ("hyper", {"eta": -1.0}, lambda: hl.Hyper(eta=-1.0)),
        ("hyper", {"eta": 3.0}, lambda: hl.Hyper(eta=3.0)),
        ("hyper", {"s": 0}, lambda: hl.Hyper(s=0)),
        ("learner", {"credit": "echo", "every": 0}, lambda: hl.Echo(every=0)),
        ("learner", {"credit": "sensitivity", "keep": 2}, lambda: hl.Sensitivity(keep=2)),
    ):
        name = list(given)[-1]
        with pytest.raises(ConfigError) as own:
            make()
        with pytest.raises(ConfigError) as told:
            config(**{section: given})
        assert str(told.value) == f"{section}.{name} = {given[name]!r} is not allowed: {own.value}"
    found = config(learner={"late": -1})
    stream, classes = build_stream(found, tmp_path)
    with pytest.raises(ConfigError, match=r"learner.late = -1 is not allowed: late=-1 must be a whole number"):
        build_learner(found, build_network(found, stream, classes))


@pytest.mark.parametrize(
    ("stream", "message"),
    [
        ({"clip": 3.0}, "stream.clip is given without stream.standardize"),
        ({"split": True}, "stream.split is given without stream.hold"),
        ({"relative": True}, "stream.relative is given without stream.lags"),
    ],
)
def test_an_argument_of_a_wrapper_without_its_wrapper_is_refused(stream, message):
    with pytest.raises(ConfigError, match=message):
        check({"stream": {"kind": "signals.henon", **stream}})


def test_further_arguments_of_a_wrapper_reach_it(tmp_path):
    stream, _ = build_stream(
        check(
            {
                "stream": {
                    "kind": "signals.henon",
                    "standardize": True,
                    "clip": 0.5,
                    "tau": 1.0,
                    "hold": 2,
                    "split": True,
                }
            }
        ),
        tmp_path,
    )
    samples = [sample for sample, _ in zip(stream, range(20), strict=False)]
    assert max(sample.u.abs().item() for sample in samples) == 0.5
    assert {sample.tau for sample in samples} == {0.5}
