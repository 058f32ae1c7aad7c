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
    with record.Recorder(learner, record.JsonLines(path, 20)) as recorder:
        for k, _ in enumerate(recorder(learner.run(stream)), 1):
            assert len(record.read(path)) == k // 20
    assert [row["step"] for row in record.read(path)] == [20, 40, 60]
    assert all(isinstance(json.loads(line), dict) for line in path.read_text().splitlines())


def test_a_recording_that_was_cut_and_resumed_is_the_same_file(learner, stream, tmp_path):
    def run(path, steps, state=None, append=False):
        sink = record.JsonLines(path, 3, FIELDS, append=append)
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
    sink.put({"step": 3})
    sink.close()
    sink.close()
    assert record.read(path) == [{"step": 1}, {"step": 2}, {"step": 3}]
    path.write_bytes(b"x" * 10_000)
    record.JsonLines(path, append=True).close()
    assert path.read_bytes() == b""


def test_a_full_disk_raises_and_leaves_every_whole_row(tmp_path):
    path = tmp_path / "run.jsonl"
    sink = record.JsonLines(path)
    sink.put({"step": 1, "loss": 0.5})
    size = path.stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        # The system lets the file grow by ten bytes: half of the next row fits.
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, hard))
        with pytest.raises(OSError, match="nothing before is lost") as caught:
            sink.put({"step": 2, "loss": 0.25})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.errno == errno.EFBIG
    assert path.read_text() == '{"step": 1, "loss": 0.5}\n'
    sink.put({"step": 2, "loss": 0.25})
    sink.close()
    assert [row["step"] for row in record.read(path)] == [1, 2]


def test_numbers_come_back_to_the_bit_also_those_that_json_has_not(tmp_path):
    path = tmp_path / "run.jsonl"
    row = {"step": 1, "a": 0.1 + 0.2, "b": 1e-320, "c": None, "d": float("inf"), "e": -float("inf")}
    sink = record.JsonLines(path)
    sink.put({**row, "f": float("nan")})
    sink.close()
    (back,) = record.read(path)
    assert back.pop("f") != back
    assert back == row
    json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_what_cannot_be_written_is_refused(tmp_path):
    path = tmp_path / "run.jsonl"
    path.write_text('{"step": 1}\n')
    with pytest.raises(ConfigError, match="has rows already"):
        record.JsonLines(path)
    with pytest.raises(ConfigError, match="there is no folder"):
        record.JsonLines(tmp_path / "none" / "run.jsonl")
    path.write_text("hello\n")
    with pytest.raises(CheckpointError, match=r"line 1 of .* is not a row"):
        record.read(path)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"[1]", "it is not an object"),
        (b'{"step": "1"}', "a whole number as its step"),
        (b'{"step": 1, "loss": ' + b"[" * 100_000 + b"}", "recursion"),
        (b'{"step": \xff}', "codec can't decode"),
        (b'{"step": 1', "Expecting"),
    ],
)
def test_a_line_that_is_not_a_row_is_named_and_no_report_is_written(tmp_path, line, why):
    path = tmp_path / "run.jsonl"
    path.write_bytes(b'{"step": 1}\n' + line + b'\n{"step": 3}\n')
    with pytest.raises(CheckpointError, match=rf"line 2 of .*run.jsonl is not a row of a record \(.*{why}"):
        record.read(path)
    with pytest.raises(CheckpointError):
        record.html(path, tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_a_record_that_was_rotated_is_continued_with_a_warning(tmp_path, caplog):
    path = tmp_path / "run.jsonl"
    sink = record.JsonLines(path)
    for k in range(5):
        sink.put({"step": k})
    state = json.loads(json.dumps(sink.state_dict()))
    sink.close()
    path.unlink()
    later = record.JsonLines(path, append=True)
    later.load_state_dict(state)
    later.put({"step": 5})
    later.close()
    assert record.read(path) == [{"step": 5}]
    assert [entry.levelname for entry in caplog.records] == ["WARNING"]
