"""Keys of a configuration are the arguments of what is built from it; a mistake is named before anything runs."""

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
from hamlearn.experiments.run import configuration, run, sections
from hamlearn.experiments.run import tables as module
from hamlearn.experiments.run.build import build_hyper, build_learner, build_stream
from hamlearn.experiments.run.config import check, load
from hamlearn.experiments.run.keys import keys_of, validate
from hamlearn.experiments.run.tables import BROKERS, RULES, SOURCES, WRAPPERS, tables
from hamlearn.hyper import Hyper
from hamlearn.integrators import INTEGRATORS
from hamlearn.interop.river import from_river
from hamlearn.serve.settings import Serve
from tests.cli import invoke

CSV = 'kind = "csv"\npath = "data.csv"\nu = ["a"]\ntarget = "b"\n'
HENON = 'kind = "signals.henon"\n'
OWNERS = [
    hl.Learner,
    hl.Learner.run,
    hl.Hyper,
    *RULES.values(),
    *CREDITS.values(),
    *INTEGRATORS.values(),
    *SOURCES.values(),
    *BROKERS.values(),
    *(wrap for wrap, _ in WRAPPERS.values()),
    from_river,
    sections.Run,
    sections.Net,
    sections.Loss,
    sections.Records,
    sections.Checkpoint,
    Serve,
]
ELSEWHERE = {
    "self",
    "network",
    "loss",
    "running_cost",
    "hyper",
    "stream",
    "dataset",
    "dtype",
    "target_dtype",
    "clock",
}
"""Arguments that a file gives in another section, or not at all."""


def config(**given):
    return check({"stream": {"kind": "signals.henon"}, **given})


def network():
    return hl.Network.recurrent(nn.RNNCell(1, 2), nn.Linear(2, 1))


@pytest.mark.parametrize("owner", OWNERS, ids=lambda owner: owner.__qualname__)
def test_every_argument_is_a_key_with_its_default_and_its_meaning(owner):
    keys, parameters = keys_of(owner), inspect.signature(owner).parameters
    assert set(parameters) - set(keys) <= ELSEWHERE
    for name, key in keys.items():
        default = parameters[name].default
        assert key.required == (default is inspect.Parameter.empty)
        assert key.meaning, f"{owner.__qualname__} says nothing of {name}"
        assert key.allowed


def test_every_key_stands_in_a_table_and_its_default_is_allowed():
    found = tables()
    for owner in OWNERS[:-1]:
        missing = set(keys_of(owner)) - {name for table in found for name in table.keys}
        assert missing <= {"max_steps", "resume", "policy", "longest", "k"}
    for table in found:
        assert table.about
        for name, key in table.keys.items():
            if key.default is not None:
                validate(table.section, {name: key.default}, {name: key})


@dataclasses.dataclass(frozen=True)
class Faded(hl.Forward):
    """A new credit.

    Args:
        rate: How fast it fades.
        shape: Of the fading.
    """

    rate: float = 0.5
    shape: Literal["line", "curve"] = "line"

    def __post_init__(self):
        if self.rate > 1:
            raise ConfigError(f"rate={self.rate} must be at most 1")


def test_a_new_credit_brings_its_arguments_into_the_file(monkeypatch):
    with pytest.raises(ConfigError, match=r'learner.credit = .faded. is not allowed. Allowed is one of "forward"'):
        config(learner={"credit": "faded"})
    monkeypatch.setitem(CREDITS, "faded", Faded)
    found = config(learner={"credit": "faded", "rate": 0.25})["learner"]
    assert (found["credit"], found["rate"], found["shape"]) == ("faded", 0.25, "line")
    assert build_learner(config(learner={"credit": "faded", "rate": 1}), network()).credit == Faded(1)
    with pytest.raises(ConfigError, match=r"learner.rate = 2 is not allowed. rate=2 must be at most 1"):
        build_learner(config(learner={"credit": "faded", "rate": 2}), network())
    with pytest.raises(ConfigError, match=r"learner.rate = 0.5 is not allowed. It belongs to credit = .faded."):
        config(learner={"rate": 0.5})


def ramp(slope: float = 1.0, width: int = 1) -> streams.Stream:
    """A new stream."""
    if width < 1:
        raise ConfigError(f"width={width} leaves no input. Give 1 or more.")
    return streams.from_iterable([hl.Sample(torch.full((width,), slope), torch.ones(1))])


def test_a_new_stream_brings_its_arguments_into_the_file(monkeypatch):
    monkeypatch.setitem(module.SOURCES, "ramp", ramp)
    stream, _ = build_stream(check({"stream": {"kind": "ramp", "slope": 3, "width": 2, "hold": 2}}))
    assert [sample.u.tolist() for sample in stream] == [[3.0, 3.0]] * 2
    with pytest.raises(ConfigError, match=r"stream.width = 0 is not allowed. width=0 leaves no input"):
        build_stream(check({"stream": {"kind": "ramp", "width": 0}}))
    with pytest.raises(ConfigError, match=r"stream.sloep is not known. Did you mean 'slope'"):
        check({"stream": {"kind": "ramp", "sloep": 1}})


def test_what_python_has_can_be_said_in_a_file():
    learner = {"order": "parallel", "credit": "forward", "integrator": "rk4", "on_nonfinite": "ignore", "late": 7}
    made = build_learner(config(learner=learner, hyper={"clock": "continuous"}), network())
    assert isinstance(made.integrator, hl.RK4)
    assert (made.on_nonfinite, made.late, made.order) == ("ignore", 7, "parallel")
    made = build_learner(config(learner={"credit": "echo", "every": 4, "dissipate": "token"}), network())
    assert made.credit == hl.Echo(every=4, dissipate="token")


def test_further_arguments_of_a_wrapper_reach_it():
    given = {"kind": "signals.henon", "standardize": True, "clip": 0.5, "tau": 1.0, "hold": 2, "split": True}
    stream, _ = build_stream(check({"stream": given}))
    samples = [sample for sample, _ in zip(stream, range(20), strict=False)]
    assert max(sample.u.abs().item() for sample in samples) == 0.5
    assert {sample.tau for sample in samples} == {0.5}


@pytest.mark.parametrize(
    ("hyper", "made"),
    [
        ({"rule": "adam", "lr": 0.01}, Hyper.from_adam(lr=0.01)),
        ({"rule": "adam"}, Hyper.from_adam()),
        (
            {"rule": "adam", "lr": 0.01, "betas": [0.5, 0.9], "eps": 1e-4, "weight_decay": 0.1, "tau": 0.5},
            Hyper.from_adam(lr=0.01, betas=(0.5, 0.9), eps=1e-4, weight_decay=0.1, tau=0.5),
        ),
        ({"rule": "rmsprop", "lr": 0.01, "alpha": 0.9}, Hyper.from_rmsprop(lr=0.01, alpha=0.9)),
        (
            {"lr": 0.1, "momentum": 0.9, "dampening": 0.5, "tau": 0.5, "clock": "continuous"},
            dataclasses.replace(Hyper.from_sgd(0.1, 0.9, 0.5, tau=0.5), clock="continuous"),
        ),
        ({"eta": 0.5, "weight_decay": 0.1}, Hyper(eta=0.5, weight_decay=0.1)),
        ({"beta": {"output.*": 0.1, "*": 0.2}}, Hyper(beta={"output.*": 0.1, "*": 0.2})),
    ],
)
def test_a_rule_in_a_file_is_that_of_the_optimizer(hyper, made):
    assert build_hyper(config(hyper=hyper)) == made


BAD = [
    ("kind = 3", "stream.kind is missing"),
    ('kind = "signals.hennon"', "stream.kind = 'signals.hennon' is not known. Did you mean 'signals.henon'"),
    ('kind = "river.Phising"', "stream.kind = 'river.Phising' is not known. Did you mean"),
    ('kind = "river.Higgs"', "is a data set that is not on this machine"),
    (HENON + "ahead = -1", "stream.ahead = -1 is not allowed. ahead=-1 looks into the past. Give 0"),
    (HENON + "ahead = 1.5", "stream.ahead = 1.5 is not allowed. Allowed is a whole number"),
    (HENON + "a = nan", "stream.a = nan is not allowed. Allowed is a number"),
    (HENON + "a = 5", "the signal henon runs away .* a=5"),
    (HENON + "tau = true", "stream.tau = True"),
    (HENON + "hold = 0", "stream.hold = 0 is not allowed. k=0"),
    (HENON + "split = true", "stream.split = True is not allowed. It belongs to hold"),
    (HENON + "clip = 3.0", "stream.clip = 3.0 is not allowed. It belongs to standardize"),
    (HENON + 'path = "x"', "stream.path = 'x' is not allowed. It belongs to kind = .csv."),
    (HENON + "kindd = 1", "stream.kindd is not known. Did you mean 'kind'"),
    ('kind = "csv"\nu = ["a"]', "stream.path is missing. Allowed is a text"),
    (CSV.replace('"data.csv"', '"no.csv"'), "there is no file"),
    (CSV.replace('["a"]', "[1]"), r"stream.u = \[1\] is not allowed. Allowed is a text or a list"),
    (CSV + "categories = ['a']", r"stream.categories = \['a'\] is not allowed. Allowed is a table"),
    (CSV + "categories = {c = 2}", "categories names 'c', which is none of the input columns"),
    (CSV + 'unit = "hour"', 'stream.unit = .hour. .* "seconds", "minutes", "hours"'),
    (CSV + 'missing = {a = "guess"}', r"stream.missing = \{'a': 'guess'\} is not allowed. Allowed is one of"),
    ('kind = "csv"\npath = "data.csv"\nu = ["a"]', "stream.target is missing: .*network.outputs"),
    (HENON + "[run]\nthreads = 100000", "run.threads = 100000 .* at least 1 and at most 256"),
    (HENON + "[network]\ninputs = 3", "network.inputs = 3 is not allowed. The stream has 1"),
    (HENON + "[network]\nhiddn = 3", "network.hiddn is not known. Did you mean 'hidden'"),
    (HENON + "[hyper]\ns = true", "hyper.s = True is not allowed"),
    (HENON + "[hyper]\neta = -1.0", "hyper.eta = -1.0 is not allowed. eta=-1.0"),
    (HENON + "[hyper]\nlr = 0.1\nbeta = 0.1", "hyper.beta = 0.1 is not allowed. It belongs to no rule"),
    (HENON + "[hyper]\nlr = -1", "hyper.lr = -1 is not allowed. lr=-1"),
    (HENON + "[hyper]\nmomentum = 0.9", 'hyper.momentum = 0.9 is not allowed. It belongs to rule = "sgd"'),
    (HENON + '[hyper]\nrule = "sgd"', "hyper.lr is missing"),
    (HENON + '[hyper]\nrule = "lion"', "hyper.rule = 'lion' is not allowed. Allowed is one of"),
    (HENON + '[hyper]\nrule = "adam"\nmomentum = 0.9', 'hyper.momentum = 0.9 .* belongs to rule = "sgd"'),
    (HENON + "[learner]\nlate = -1", "learner.late = -1 is not allowed. late=-1 must be a whole number"),
    (HENON + "[learner]\ntruncate = 3", 'learner.truncate = 3 is not allowed. It belongs to credit = "echo"'),
    (HENON + '[learner]\ncredit = "echo"\nevery = 0', "learner.every = 0 is not allowed. every=0"),
    (HENON + '[loss]\nkind = "cross_entropy"', "The target is one number"),
    (CSV + 'classes = ["1", "2"]', "The targets are classes. Allowed is"),
    (CSV + 'classes = ["1", "2"]\nlags = 2', "stream.lags = 2 is not allowed. Targets become inputs if"),
    (HENON + '[records]\nmetrics = ["MEA"]', "'MEA' in records.metrics is not known. Did you mean"),
    (HENON + "[recordz]\nevery = 3", r"section \[recordz\] is not known. Did you mean 'records'"),
]


@pytest.mark.parametrize(("text", "message"), BAD)
def test_a_mistake_is_named_by_check_and_by_run_before_a_folder_is_made(tmp_path, text, message):
    (tmp_path / "data.csv").write_text("a,b\n1,2\n3,1\n")
    path = tmp_path / "config.toml"
    path.write_text(f"[stream]\n{text}\n" + ("" if "[run]" in text else "[run]\nsteps = 2\n"))
    with pytest.raises(ConfigError, match=message):
        run(path, out=tmp_path / "out", progress=False)
    assert not (tmp_path / "out").exists()
    checked = invoke("config", "check", path)
    assert isinstance(checked.exception, ConfigError)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"[stream", "is not TOML"),
        (b"x = " + b"9" * 5000, "is not TOML"),
        (b"[stream]\nkind = 'caf\xe9'", "is not UTF-8 .* Save it as UTF-8"),
        (b"[[stream]]\nkind = 'csv'", r"Write \[stream\], and its keys below it"),
    ],
)
def test_a_file_that_is_not_a_configuration_is_an_error(tmp_path, data, message):
    (tmp_path / "config.toml").write_bytes(data)
    with pytest.raises(ConfigError, match=message):
        load(tmp_path / "config.toml")


def test_a_file_with_a_byte_order_mark_is_read(tmp_path):
    (tmp_path / "config.toml").write_bytes(b'\xef\xbb\xbf[stream]\nkind = "signals.henon"\n')
    assert load(tmp_path / "config.toml")["stream"] == {"kind": "signals.henon"}


def test_paths_in_a_file_are_relative_to_the_file_and_those_of_flags_to_the_working_folder(tmp_path, monkeypatch):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "data.csv").write_text("a,b\n" + "1,2\n3,1\n" * 10)
    (tmp_path / "there" / "config.toml").write_text(f'[stream]\n{CSV}[run]\nout = "results"\n')
    monkeypatch.chdir(tmp_path)
    assert invoke("run", "there/config.toml", "--no-progress").exit_code == 0
    assert (tmp_path / "there" / "results" / "result.json").is_file()
    assert invoke("run", "there/config.toml", "--no-progress", "--out", "here").exit_code == 0
    assert (tmp_path / "here" / "result.json").is_file()
    # The folder of the run can be looked at from anywhere.
    monkeypatch.chdir(tmp_path / "here")
    assert configuration(tmp_path / "here") == load(tmp_path / "there" / "config.toml")


def test_tables_are_standardized_unless_the_file_says_otherwise(tmp_path):
    (tmp_path / "data.csv").write_text("a,b\n" + "".join(f"{20 + k % 5},{k % 2}\n" for k in range(40)))
    section = {"kind": "csv", "path": "data.csv", "target": "b"}
    for given, bound in (({}, 10), ({"standardize": True}, 10), ({"standardize": False}, 24)):
        stream, _ = build_stream(check({"stream": section | given}), tmp_path)
        largest = max(sample.u.abs().max().item() for sample in stream)
        assert (largest == 24) is (bound == 24)


def test_check_builds_what_a_file_describes_and_says_so(tmp_path):
    (tmp_path / "config.toml").write_text(f"[stream]\n{HENON}[run]\nsteps = 5\n")
    result = invoke("config", "check", tmp_path / "config.toml")
    assert result.exit_code == 0
    assert "config.toml is right" in result.output
    assert list(tmp_path.iterdir()) == [tmp_path / "config.toml"]
