"""CSV files, good and bad."""

from datetime import timedelta

import pytest
import torch

from hamlearn import streams
from hamlearn.errors import ConfigError, SampleError


@pytest.fixture
def write(tmp_path):
    def write(text, name="data.csv"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def values(stream):
    return [s.u.tolist() for s in stream]


def test_columns_become_inputs_targets_and_time_steps(write):
    path = write("day,a,b,kind\n2024-01-01,1,2,cat\n2024-01-03,3,4,dog\n2024-01-04,5,6,\n")
    stream = streams.csv(path, ["b", "a"], "kind", "day", classes=["dog", "cat"], unit=timedelta(days=1))
    samples = list(stream)
    assert values(samples) == [[2, 1], [4, 3], [6, 5]]
    assert [s.target for s in samples] == [torch.tensor(1), torch.tensor(0), None]
    assert [s.tau for s in samples] == [None, 2.0, 1.0]
    assert str(stream.spec) == "u: float32[2], target: int64[], length: ?"


def test_quotes_delimiters_marks_and_line_ends_are_read(write):
    path = write('\ufeffx;note\r\n1;"a;b\nc"\r\n\r\n2;\'\r\n')
    assert values(streams.csv(path, ["x"], delimiter=";")) == [[1.0], [2.0]]


def test_a_time_format_is_followed(write):
    path = write("t,x\n31.12.2023 23:00,1\n01.01.2024 01:00,2\n")
    stream = streams.csv(path, "x", time="t", time_format="%d.%m.%Y %H:%M", unit=timedelta(hours=1))
    assert [s.tau for s in stream] == [None, 2.0]
    with pytest.raises(SampleError, match=r"line 2: column 't' holds '31.12.2023 23:00', which does not follow"):
        list(streams.csv(path, "x", time="t", time_format="%Y"))


def test_missing_inputs_follow_the_policy(write):
    path = write("t,x,y\n0,,1\n1,2,3\n3,4,NaN\n6,5,6\n")
    with pytest.raises(SampleError, match=r"data.csv, line 2: column 'x' is missing"):
        list(streams.csv(path, ["x", "y"]))
    assert values(streams.csv(path, ["x", "y"], missing="skip")) == [[2, 3], [5, 6]]
    assert values(streams.csv(path, ["x", "y"], missing="hold")) == [[2, 3], [4, 3], [5, 6]]
    assert values(streams.csv(path, ["x", "y"], missing=-1.0)) == [[-1, 1], [2, 3], [4, -1], [5, 6]]
    skipping = streams.csv(path, ["y"], time="t", missing="skip", unit=1.0)
    assert [s.tau for s in skipping] == [None, 1.0, 5.0]
    assert skipping.skipped == 1


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("1,abc,0", r"line 3: column 'x' holds 'abc', which is not a finite number"),
        ("1,inf,0", r"line 3: column 'x' holds 'inf'"),
        ("1,2", r"line 3 has 2 cells, but the header names 3 columns"),
        ("1,2,3,4", r"line 3 has 4 cells"),
        ("1,2,q", r"line 3: column 'y' holds 'q', which is none of the classes 0, 1"),
        ("0,2,1", r"time stands still at data.csv, line 3"),
        ("-1,2,1", r"time runs backwards at data.csv, line 3"),
        ("soon,2,1", r"'soon' at data.csv, line 3 is no time stamp"),
        ('1,"2"3,1', r"line 3 cannot be read"),
    ],
)
def test_a_bad_row_is_named_by_its_line_or_skipped(write, row, message):
    path = write(f"t,x,y\n0,1,0\n{row}\n5,6,1\n")
    columns = {"u": ["x"], "target": "y", "time": "t", "classes": ["0", "1"]}
    stream = iter(streams.csv(path, **columns))
    assert next(stream).u.tolist() == [1.0]
    with pytest.raises(SampleError, match=message):
        next(stream)
    skipping = streams.csv(path, **columns, bad="skip")
    assert values(skipping) == [[1.0], [6.0]]
    assert skipping.skipped == 1


def test_a_row_that_is_no_text_is_named(write):
    path = write(b"x\n1\n\xff\xfe\n2\n")
    with pytest.raises(SampleError, match="line 3 cannot be read"):
        list(streams.csv(path, ["x"]))
    assert values(streams.csv(path, ["x"], bad="skip")) == [[1.0], [2.0]]


def test_a_file_that_grew_is_resumed_at_its_old_end(write):
    path = write("x\n1\n2\n")
    stream = streams.csv(path, ["x"])
    assert values(stream) == [[1.0], [2.0]]
    state = stream.state_dict()
    with path.open("a") as file:
        file.write("3\n")
    stream.load_state_dict(state)
    assert values(stream) == [[3.0]]


def test_a_setup_that_cannot_be_is_refused(write, tmp_path):
    path = write("x,y\n1,2\n")
    with pytest.raises(ConfigError, match=r"no column 'z'. Its columns are x, y"):
        streams.csv(path, ["z"])
    with pytest.raises(ConfigError, match="there is no file"):
        streams.csv(tmp_path / "none.csv", ["x"])
    with pytest.raises(ConfigError, match="missing='guess'"):
        streams.csv(path, ["x"], missing="guess")
    with pytest.raises(ConfigError, match="bad='mend'"):
        streams.csv(path, ["x"], bad="mend")
    with pytest.raises(ConfigError, match="needs one target column"):
        streams.csv(path, ["x"], classes=["a"])
