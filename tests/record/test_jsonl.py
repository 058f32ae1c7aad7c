"""Files that lose nothing and double nothing."""

import errno
import json
import resource

import pytest

from hamlearn import record
from hamlearn.errors import CheckpointError, ConfigError

FIELDS = ("step", "t", "loss", "hamiltonian", "h", "z", "omega", "theta")


def test_rows_are_on_file_as_soon_as_they_are_kept(learner, stream, tmp_path):
    path = tmp_path / "run.jsonl"
    with record.Recorder(learner, record.JsonLines(path, record.Every(20))) as recorder:
        for k, _ in enumerate(recorder(learner.run(stream)), 1):
            assert len(record.read(path)) == k // 20
    assert [row["step"] for row in record.read(path)] == [20, 40, 60]
    assert all(isinstance(json.loads(line), dict) for line in path.read_text().splitlines())


@pytest.mark.parametrize(
    "policy", [lambda: record.Every(3), lambda: record.Windows(7), lambda: record.Reservoir(8, seed=2)]
)
def test_a_recording_that_was_cut_and_resumed_is_the_same_file(learner, stream, tmp_path, policy):
    def run(path, steps, state=None, append=False):
        sink = record.JsonLines(path, policy(), FIELDS, append=append)
        recorder = record.Recorder(learner, sink)
        if state is not None:
            recorder.load_state_dict(state)
        reports = learner.run(stream, resume=state is not None)
        for _, _report in zip(range(steps), recorder(reports), strict=False):
            pass
        return recorder

    learner.save(tmp_path / "start")
    run(tmp_path / "whole", 60).close()
    learner.load(tmp_path / "start")
    recorder = run(tmp_path / "cut", 25)
    state = json.loads(json.dumps(recorder.state_dict()))
    learner.save(tmp_path / "middle")
    for report in learner.run(stream, max_steps=11, resume=True):
        recorder.take(report)
    recorder.close()
    with (tmp_path / "cut").open("ab") as file:
        file.write(b'{"step": 3')
    learner.load(tmp_path / "middle")
    run(tmp_path / "cut", 60, state, append=True).close()
    assert (tmp_path / "cut").read_bytes() == (tmp_path / "whole").read_bytes()


def test_a_line_that_was_cut_short_is_not_read_and_is_removed(tmp_path):
    path = tmp_path / "run.jsonl"
    path.write_bytes(b'{"step": 1}\n{"step": 2}\n{"ste')
    assert record.read(path) == [{"step": 1}, {"step": 2}]
    sink = record.JsonLines(path, append=True)
    sink.put({"step": 3}, None)
    sink.close()
    sink.close()
    assert record.read(path) == [{"step": 1}, {"step": 2}, {"step": 3}]
    path.write_bytes(b"x" * 10_000)
    record.JsonLines(path, append=True).close()
    assert path.read_bytes() == b""


def test_a_full_disk_raises_and_leaves_every_whole_row(tmp_path):
    path = tmp_path / "run.jsonl"
    sink = record.JsonLines(path)
    sink.put({"step": 1, "loss": 0.5}, None)
    size = path.stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        # The system lets the file grow by ten bytes: half of the next row fits.
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, hard))
        with pytest.raises(OSError, match="nothing before is lost") as caught:
            sink.put({"step": 2, "loss": 0.25}, None)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.errno == errno.EFBIG
    assert path.read_text() == '{"step": 1, "loss": 0.5}\n'
    sink.put({"step": 2, "loss": 0.25}, None)
    sink.close()
    assert [row["step"] for row in record.read(path)] == [1, 2]


def test_numbers_come_back_to_the_bit_also_those_that_json_has_not(tmp_path):
    path = tmp_path / "run.jsonl"
    row = {"step": 1, "a": 0.1 + 0.2, "b": 1e-320, "c": None, "d": float("inf"), "e": -float("inf")}
    sink = record.JsonLines(path)
    sink.put({**row, "f": float("nan")}, None)
    sink.close()
    (back,) = record.read(path)
    assert back.pop("f") != back
    assert back == row
    json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_a_reservoir_on_file_reads_as_what_it_holds(tmp_path):
    path = tmp_path / "run.jsonl"
    sink = record.JsonLines(path, record.Reservoir(2))
    for step, slot in ((1, 0), (2, 1), (5, 0)):
        sink.put({"step": step}, slot)
    sink.close()
    assert record.read(path) == [{"step": 2}, {"step": 5}]


def test_what_cannot_be_written_is_refused(tmp_path):
    path = tmp_path / "run.jsonl"
    path.write_text('{"step": 1}\n')
    with pytest.raises(ConfigError, match="has rows already"):
        record.JsonLines(path)
    with pytest.raises(ConfigError, match="there is no folder"):
        record.JsonLines(tmp_path / "none" / "run.jsonl")
    with pytest.raises(ConfigError, match=r"Last\(3\) would write every moment"):
        record.JsonLines(tmp_path / "other.jsonl", record.Last(3))
    sink = record.JsonLines(path, append=True)
    with pytest.raises(CheckpointError, match="rows are missing"):
        sink.load_state_dict({"policy": {}, "bytes": 100})
    sink.close()
    path.write_text("hello\n")
    with pytest.raises(CheckpointError, match=r"line 1 of .* is no row"):
        record.read(path)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"[1]", "it is a list, not an object"),
        (b'{"step": 1, "loss": NaN}', "NaN is no number in JSON"),
        (b'{"step": "1"}', "its step is no whole number"),
        (b'{"step": 1.5}', "its step is no whole number"),
        (b'{"step": 1, "slot": [2]}', "its slot is no whole number"),
        (b'{"step": 1, "loss": ' + b"[" * 100_000 + b"}", "recursion"),
        (b'{"step": 1, "loss": ' + b"9" * 5000 + b"}", "Exceeds the limit"),
        (b'{"step": 1, "\\ud800": 2}', "surrogates not allowed"),
        (b'{"step": \xff}', "codec can't decode"),
        (b'{"step": 1', "Expecting"),
    ],
)
def test_a_line_that_is_no_row_is_named_and_no_report_is_written(tmp_path, line, why):
    path = tmp_path / "run.jsonl"
    path.write_bytes(b'{"step": 1}\n' + line + b'\n{"step": 3}\n')
    with pytest.raises(CheckpointError, match=rf"line 2 of .*run.jsonl is no row of a record \(.*{why}"):
        record.read(path)
    with pytest.raises(CheckpointError):
        record.html(path, tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_rows_that_were_changed_since_the_checkpoint_are_noticed_and_the_file_is_left_alone(tmp_path):
    path = tmp_path / "run.jsonl"
    sink = record.JsonLines(path)
    for k in range(5):
        sink.put({"step": k, "loss": 0.5}, None)
    state = json.loads(json.dumps(sink.state_dict()))
    sink.put({"step": 5, "loss": 0.5}, None)
    sink.close()
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b'"step": 2, "loss": 0.5', b'"step": 2, "loss": 0.6'))
    changed = path.read_bytes()
    later = record.JsonLines(path, append=True)
    with pytest.raises(CheckpointError, match="is not as it was when the checkpoint was saved"):
        later.load_state_dict(state)
    later.close()
    assert path.read_bytes() == changed
    path.write_bytes(whole)
    later = record.JsonLines(path, append=True)
    later.load_state_dict(state)
    later.put({"step": 5, "loss": 0.5}, None)
    later.close()
    assert path.read_bytes() == whole


def test_a_report_draws_whatever_numbers_can_be(tmp_path):
    values = [
        0.0,
        -0.0,
        5e-324,
        1e-300,
        1.0,
        1.0 + 1e-16,
        -1e308,
        1.7e308,
        float("nan"),
        float("inf"),
        None,
        "text",
    ]
    for first in values:
        for second in values:
            rows = [
                {"step": k, "loss": v, "MAE": v, "t": v, "seconds": v, "dropped": v}
                for k, v in enumerate((first, second, first))
            ]
            page = record.html(rows, tmp_path / "report.html").read_text()
            assert "nan," not in page
            assert ",inf" not in page
