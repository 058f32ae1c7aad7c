"""Every value of a configuration is looked at before anything is built from it."""

import contextlib
import logging

import pytest

from hamlearn import streams
from hamlearn.errors import ConfigError, HamlearnError, SampleError
from hamlearn.experiments.run import run
from hamlearn.experiments.run_build import build_stream
from hamlearn.experiments.run_config import check, load
from hamlearn.experiments.run_keys import accepted
from hamlearn.experiments.run_streams import BROKERS, MAKERS, WRAPPERS, stream_keys

CSV = 'kind = "csv"\npath = "data.csv"\nu = ["a"]\ntarget = "b"\n'
HENON = 'kind = "signals.henon"\n'
GLASS = 'kind = "signals.mackey_glass"\n'

BAD = [
    (HENON + "ahead = -1", "stream.ahead = -1 is not allowed: ahead=-1 looks into the past. Give 0"),
    (HENON + "ahead = 1.5", "stream.ahead = 1.5"),
    (HENON + "ahead = 1000000000", "stream.ahead = 1000000000"),
    (HENON + "washout = 1000000000000", "stream.washout = 1000000000000"),
    (HENON + "washout = 'x'", "stream.washout = 'x'"),
    (HENON + "a = nan", "stream.a = nan is not allowed. Allowed is a number"),
    (HENON + "a = [1]", r"stream.a = \[1\]"),
    (HENON + "a = 5", "the signal henon runs away .* a=5"),
    (HENON + f"a = {'9' * 400}", "stream.a = 9+"),
    (HENON + f"seed = 0x{'f' * 5000}", "stream.seed = a value of type int is not allowed"),
    (HENON + "tau = -1", "stream.tau = -1"),
    (HENON + "tau = true", "stream.tau = True"),
    (HENON + "seed = -1", "stream.seed = -1"),
    (HENON + "lags = 0", "stream.lags = 0"),
    (HENON + "hold = 0", "stream.hold = 0"),
    (HENON + "max_tau = 0", "stream.max_tau = 0"),
    (HENON + "finite = 'maybe'", "stream.finite = 'maybe'"),
    (HENON + "standardize = 1", "stream.standardize = 1"),
    (HENON + "a.b = 1", r"stream.a = \{'b': 1\}"),
    (HENON + "kindd = 1", "key stream.kindd of signals.henon is not known. Did you mean 'kind'"),
    (GLASS + "n = 0.5\nbeta = -9", "the signal mackey_glass runs away"),
    (GLASS + "delay = 1e12", "stream.delay = 1000000000000.0 .* is more than 1,000,000 steps long"),
    (GLASS + "delay = 1e-9", "is not a whole number of steps"),
    (GLASS + "tau = 0", "stream.tau = 0 is not allowed: tau=0 is no time step"),
    (GLASS + "substeps = 0", "stream.substeps = 0 is not allowed: substeps=0 is no number of steps"),
    (HENON + "washout = -1", "stream.washout = -1 is not allowed: washout=-1 is no number of values"),
    ('kind = "signals.delayed_add"\nt1 = 3\nt2 = -1', "stream.t2 = -1 is not allowed: t2=-1 is negative"),
    (GLASS + "substeps = 1000000", "stream.substeps = 1000000"),
    (GLASS + "washout = 900000\nsubsteps = 10", "stream.washout = 900000 times stream.substeps = 10"),
    ('kind = "signals.sinusoids"\nfrequencies = []', "stream.frequencies"),
    ('kind = "signals.sinusoids"\nfrequencies = 0.1', "stream.frequencies = 0.1"),
    ('kind = "signals.sinusoids"\nfrequencies = [0.1]\nphases = [1, 2]', "do not go together"),
    ('kind = "signals.delayed_add"\nt1 = 1000000000', "stream.t1 = 1000000000"),
    ("kind = 3", "stream.kind is missing"),
    ('kind = "river.synth"', "data set stream.kind = 'river.synth' is not known"),
    ('kind = "river.Higgs"', "is a data set that is not on this machine"),
    ('kind = "river.Phishing"\nunit = 0', "stream.unit = 0"),
    ('kind = "csv"\nu = ["a"]', "stream.path is missing"),
    (CSV.replace('"data.csv"', "3"), "stream.path = 3"),
    (CSV.replace('"data.csv"', '"no.csv"'), "there is no file"),
    (CSV.replace('"data.csv"', '"' + "x" * 300 + '"'), "there is no file"),
    (CSV.replace('["a"]', "[]"), r"stream.u = \[\]"),
    (CSV.replace('["a"]', "[1]"), r"stream.u = \[1\]"),
    (CSV + 'classes = ["x", "x"]', "stream.classes"),
    (CSV + "missing = nan", "stream.missing = nan"),
    (
        CSV + 'missing = {a = "guess"}',
        r"stream.missing = \{'a': 'guess'\} is not allowed. Allowed is one of \"raise\"",
    ),
    (
        CSV + "classes = 0",
        "stream.classes = 0 is not allowed: classes=0 leaves room for none. Give 1 or more, or a list of names",
    ),
    (CSV + "categories = ['a']", r"stream.categories = \['a'\] is not allowed. Allowed is a table from names"),
    (CSV + "categories = {a = 0}", r"stream.categories = \{'a': 0\}"),
    (CSV + "categories = {a = ['x', 'x']}", r"stream.categories = \{'a': \['x', 'x'\]\}"),
    (CSV + "categories = {c = 2}", "categories names 'c', which is none of the input columns"),
    (CSV + "hashed = {a = 1.5}", r"stream.hashed = \{'a': 1.5\}"),
    ('kind = "river.Phishing"\nhashed = {c = 2}', "hashed names 'c', which is none of the input columns"),
    (CSV + "missing = true", "stream.missing = True"),
    (CSV + 'delimiter = ",,"', "stream.delimiter = ',,'"),
    (CSV + 'encoding = "klingon"', "encoding='klingon' is not known"),
    ('kind = "live"\nsource = 3', "stream.source = 3"),
    ('kind = "live"\nsource = "tcp://h:1"\npolicy = "latest-99999999999"', "stream.policy"),
    ('kind = "live"\nsource = "tcp://h:1"\npolicy = 1', "stream.policy = 1"),
    ('kind = "live"\nsource = "tcp://h:1"\ntimeout = inf', "stream.timeout = inf"),
    ('kind = "live"\nsource = "localhost"', "'localhost' is no address"),
    (HENON + "[run]\nsteps = 1000000000000000000000", "run.steps"),
    (HENON + "[run]\nthreads = 100000", "run.threads = 100000"),
    (HENON + "[run]\nseed = 99999999999999999999", "run.seed"),
    (HENON + '[run]\nout = ""', "run.out = ''"),
    (HENON + "[network]\nhidden = 1000000000", "network.hidden = 1000000000"),
    (HENON + "[network]\nhidden = [50000, 50000]", "2,500,100,000 weights|weights. Allowed are 100,000,000"),
    (HENON + "[network]\ninputs = 3", "network.inputs = 3 is not allowed: the stream has 1"),
    (HENON + "[network]\noutputs = 3", "network.outputs = 3 is not allowed: the stream has 1"),
    (
        'kind = "csv"\npath = "data.csv"\nu = ["a"]',
        "stream.target is missing: it names the column that is to be learned. .*network.outputs",
    ),
    (HENON + "[hyper]\ntau = 1e-320", "hyper.tau = 1e-320"),
    (HENON + "[hyper]\nphi = 1e300", "hyper.phi = 1e.300"),
    (HENON + f"[hyper]\neta = {'9' * 400}", "hyper.eta = 9+"),
    (HENON + "[hyper]\ns = true", "hyper.s = True"),
    (HENON + "[hyper]\nbeta = {}", r"hyper.beta = \{\}"),
    (HENON + '[loss]\nkind = "cross_entropy"', "the target is one number"),
    (CSV + 'classes = ["1", "2"]', "the targets are classes. Allowed is"),
    (CSV + 'classes = ["1", "2"]\nlags = 2\n[loss]\nkind = "cross_entropy"', "stream.lags = 2 is not allowed"),
    (HENON + '[records]\nmetrics = ["MAE", "MAE"]', "records.metrics"),
]


@pytest.fixture
def write(tmp_path):
    def write(text):
        (tmp_path / "data.csv").write_text("a,b\n1,2\n3,1\n")
        path = tmp_path / "config.toml"
        path.write_bytes(text if isinstance(text, bytes) else f"[stream]\n{text}\n".encode())
        return path

    return write


@pytest.mark.parametrize(("text", "message"), BAD)
def test_a_value_that_is_not_allowed_is_named_with_what_is(write, tmp_path, text, message):
    if "[run]" not in text:
        text += "\n[run]\nsteps = 2"
    with pytest.raises(ConfigError, match=message) as caught:
        run(write(text), out=tmp_path / "out", progress=False)
    assert len(str(caught.value)) < 2000
    assert not (tmp_path / "out" / "record.jsonl").exists()


ODD = [None, True, -1, 0, 1, 10**400, 1e308, float("nan"), "", "x", "\0", [], [[]], ["a"], {}, {"a": {"b": 1}}]


@pytest.mark.parametrize("kind", [*MAKERS, *BROKERS, "river.Phishing", "river.", "signals.", "x", ""])
def test_no_key_of_any_section_raises_anything_but_an_error_of_ours(kind, tmp_path):
    """Each key with each odd value: the check answers, or refuses."""
    base = {"stream": {"kind": kind, "path": "data.csv", "u": ["a"], "source": "tcp://127.0.0.1:9"}}
    keys = stream_keys(kind) or {}
    base["stream"] = {k: v for k, v in base["stream"].items() if k == "kind" or (k in keys and keys[k].required)}
    names = [("stream", name) for name in (*keys, *WRAPPERS, "unit", "kind", "other")]
    names += [(table.name, name) for table in accepted() if table.name != "stream" for name in table.keys]
    (tmp_path / "data.csv").write_text("a\n1\n")
    for section, name in names:
        for value in ODD:
            raw = {**base, section: {**base.get(section, {}), name: value}}
            with contextlib.suppress(HamlearnError):
                config = check(raw)
                if section == "stream" and not kind.startswith("river"):
                    build_stream(config, tmp_path)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'[stream]\nkind = "signals.henon"\nx = ' + b"[" * 100_000, "nested too deeply|is not TOML"),
        (b"x = " + b"9" * 5000, "is not TOML"),
        (b"\xff\xfe[\0s\0", "is not UTF-8 .* Save it as UTF-8"),
        (b"[stream]\nkind = 'caf\xe9'", "is not UTF-8"),
        (b"#" * (1 << 21), "has 2,097,152 bytes"),
        (b"[[stream]]\nkind = 'csv'", "is no section"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused(write, data, message):
    with pytest.raises(ConfigError, match=message):
        load(write(data))


def test_a_file_that_begins_with_a_mark_is_read(write):
    assert load(write(b'\xef\xbb\xbf[stream]\nkind = "signals.henon"\n'))["stream"] == {"kind": "signals.henon"}


def test_signals_that_run_away_later_are_named_when_they_do():
    stream = streams.signals.mackey_glass(beta=1.0, gamma=-0.01)
    seen = []
    with pytest.raises(ConfigError, match="the signal mackey_glass runs away"):
        seen.extend(stream)
    samples = iter(stream)
    assert all(next(samples).u.isfinite().all() for _ in range(256))


def test_a_feature_of_a_river_data_set_that_is_no_number_is_named():
    from hamlearn.interop.river import from_river

    with pytest.raises(
        SampleError,
        match=r"sample 0: column 'word' holds 'abc', which is not a finite number.* categories=\{'word': ",
    ):
        list(from_river([({"word": "abc"}, 1.0)]))
    with pytest.raises(SampleError, match="sample 1: column 'x' is missing"):
        list(from_river([({"x": 1}, 1.0), ({}, 1.0)]))


@pytest.mark.parametrize("standardize", [None, False, True])
def test_columns_far_from_nought_are_told_of_unless_somebody_has_decided(standardize, tmp_path, caplog):
    rows = "".join(f"{20 + k % 5},{k % 3 - 1},{k % 2}\n" for k in range(40))
    (tmp_path / "rows.csv").write_text("far,near,y\n" + rows)
    section = {"kind": "csv", "path": "rows.csv", "target": "y"}
    section |= {} if standardize is None else {"standardize": standardize}
    with caplog.at_level(logging.WARNING, "hamlearn"):
        stream, _ = build_stream({"stream": section}, tmp_path)
    told = "the column 'far' has a mean of 22 and a deviation of 1.43 in the first 40 rows"
    assert (told in caplog.text) is (standardize is None)
    assert "near" not in caplog.text
    assert len(list(stream)) == 40
