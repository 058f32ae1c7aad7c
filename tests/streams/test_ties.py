"""Rows that share a time stamp, local times that go back, and files that are separated otherwise."""

import json
from datetime import datetime

import pytest

from hamlearn import streams
from hamlearn.errors import CheckpointError, ConfigError, SampleError
from hamlearn.experiments.run.build import build_stream
from hamlearn.experiments.run.config import check
from hamlearn.interop.river import from_river
from tests.streams.reading import blocks_of

STAMPS = ["08:00:01", "08:00:01", "08:00:02", "08:00:02", "08:00:02", "08:00:05", "08:00:05", "08:00:06"]
TAUS = [None, 0.25, 1.0, 0.25, 0.25, 3.0, 0.25, 1.0]


def log(stamps=STAMPS):
    return [{"t": f"2024-03-01T{stamp}", "x": float(k)} for k, stamp in enumerate(stamps)]


def write(path, rows):
    path.write_text("t,x\n" + "".join(f"{row['t']},{row['x']}\n" for row in rows))
    return path


def every(tmp_path, rows, **settings):
    """The same log in all the ways in which it can come."""
    path = write(tmp_path / "log.csv", rows)
    times = [row["t"] for row in rows]
    pairs = [({"t": datetime.fromisoformat(row["t"]), "x": row["x"]}, 0.0) for row in rows]
    section = {"kind": "csv", "standardize": False, "path": "log.csv", "u": "x", "time": "t", **settings}
    return {
        "csv": streams.csv(path, "x", time="t", **settings),
        "rows": streams.from_rows(rows, "x", time="t", **settings),
        "timed": streams.timed(times, [[row["x"]] for row in rows], **settings),
        "river": from_river(pairs, **settings),
        "toml": build_stream(check({"stream": section}), tmp_path)[0],
    }


@pytest.mark.parametrize("unit", ["auto", 1.0])
def test_a_row_with_the_stamp_of_the_row_before_takes_the_step_that_ties_gives(tmp_path, unit):
    for kind, stream in every(tmp_path, log(), unit=unit, ties=0.25).items():
        assert [sample.tau for sample in stream] == TAUS, kind
        for size in (1, 3, 8):
            blocks = [block.sample(k) for block in blocks_of(stream, size) for k in range(block.count)]
            assert [sample.tau for sample in blocks] == TAUS, (kind, size)


def test_ties_are_taken_before_a_unit_could_be_found_from_the_data(tmp_path):
    rows = log(["08:00:01"] * 40 + ["08:00:03", "08:00:07"])
    for kind, stream in every(tmp_path, rows, ties=0.5).items():
        assert [sample.tau for sample in stream] == [None] + [0.5] * 39 + [1.0, 2.0], kind


def test_ties_go_on_to_the_bit_after_a_checkpoint_at_any_row(tmp_path):
    for k in range(1, len(STAMPS)):
        for kind, stream in every(tmp_path, log(), ties=0.25, unit=1.0).items():
            samples = iter(stream)
            before = [next(samples).tau for _ in range(k)]
            state = json.loads(json.dumps(stream.state_dict()))
            later = every(tmp_path, log(), ties=0.25, unit=1.0)[kind]
            later.load_state_dict(state)
            assert before + [sample.tau for sample in later] == TAUS, (kind, k)


def test_a_checkpoint_is_not_taken_up_with_other_ties_and_one_without_is_as_before(tmp_path):
    for kind, stream in every(tmp_path, log(), ties=0.25, unit=1.0).items():
        _ = next(iter(stream))
        state = stream.state_dict()
        other = every(tmp_path, log(), unit=1.0)[kind]
        with pytest.raises(CheckpointError, match=r"saved with ties=0.25, but this one has ties=None"):
            other.load_state_dict(state)
        plain = other.state_dict()
        # As states were before there were ties.
        del plain["config"]["ties"]
        other.load_state_dict(plain)


@pytest.mark.parametrize("ties", [0.0, -1.0, float("nan"), float("inf"), True])
def test_ties_that_are_no_time_step_are_refused(tmp_path, ties):
    path = write(tmp_path / "log.csv", log())
    with pytest.raises(ConfigError, match=r"ties=.* is not a time step. Give a positive number"):
        streams.csv(path, "x", time="t", ties=ties)
    with pytest.raises(ConfigError, match="ties"):
        check_and_build({"kind": "csv", "path": "log.csv", "u": "x", "time": "t", "ties": ties}, tmp_path)


def check_and_build(section, folder):
    return build_stream(check({"stream": section}), folder)[0]


def test_equal_stamps_are_refused_with_what_helps(tmp_path):
    for kind, stream in every(tmp_path, log()).items():
        with pytest.raises(SampleError, match="time stands still at") as caught:
            list(stream)
        said = str(caught.value)
        assert "Sort" not in said, kind
        option = "backwards" if kind == "timed" else "bad"
        for part in ("the time stamp of its predecessor", "ties=0.01", "finer resolution", f'{option}="skip"'):
            assert part in said, kind


def test_a_clock_that_was_put_back_is_told_and_an_offset_mends_it(tmp_path):
    local = ["2024-10-27T02:30:00", "2024-10-27T02:10:00"]
    with pytest.raises(
        SampleError, match=r"comes 1200 before its predecessor. Sort .* in UTC or with their offset"
    ):
        list(streams.timed(local, [[0.0], [1.0]], ties=0.5))
    offset = ["2024-10-27T02:30:00+02:00", "2024-10-27T02:10:00+01:00"]
    assert [sample.tau for sample in streams.timed(offset, [[0.0], [1.0]], unit=60.0)] == [None, 40.0]
