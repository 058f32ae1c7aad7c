"""CSV files, good and bad."""

import bz2
import gzip
import json
import lzma
from datetime import timedelta

import pytest
import torch
from backports import zstd

from hamlearn import streams
from hamlearn.errors import ConfigError, SampleError, StreamError


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


def test_a_time_format_is_followed(write):
    path = write("t,x\n31.12.2023 23:00,1\n01.01.2024 01:00,2\n")
    stream = streams.csv(path, "x", time="t", time_format="%d.%m.%Y %H:%M", unit=timedelta(hours=1))
    assert [s.tau for s in stream] == [None, 2.0]
    with pytest.raises(SampleError, match=r"line 2: column 't' holds '31.12.2023 23:00', which does not follow"):
        list(streams.csv(path, "x", time="t", time_format="%Y"))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("1,abc,0", r"line 3: column 'x' holds 'abc', which is not a finite number"),
        ("1,2024-03-01 08:01,0", r"If it is the time of the row, say so: time='x'"),
        ("1,inf,0", r"line 3: column 'x' holds 'inf'"),
        ("1,2", r"line 3 has 2 cells, but the header names 3 columns"),
        ("1,2,3,4", r"line 3 has 4 cells"),
        ("1,2,q", r"line 3: column 'y' holds 'q', which is none of the classes \['0', '1'\]"),
        ("0,2,1", r"time stands still at data.csv, line 3"),
        ("-1,2,1", r"time runs backwards at data.csv, line 3"),
        ("soon,2,1", r"'soon' at data.csv, line 3 is not a time stamp"),
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


def test_a_file_that_grew_is_resumed_at_its_old_end(write):
    path = write("x\n1\n2\n")
    stream = streams.csv(path, ["x"])
    assert values(stream) == [[1.0], [2.0]]
    state = stream.state_dict()
    with path.open("a") as file:
        file.write("3\n")
    stream.load_state_dict(state)
    assert values(stream) == [[3.0]]


TABLE = 'größe,€,name\n1.5,2,ä\n-3,4e1,"b\nc"\n5,6,d\n'
ROWS = [[1.5, 2.0], [-3.0, 40.0], [5.0, 6.0]]
MARKED = {
    "utf-8": b"\xef\xbb\xbf" + TABLE.encode(),
    "utf-16-le": b"\xff\xfe" + TABLE.encode("utf-16-le"),
    "utf-16-be": b"\xfe\xff" + TABLE.encode("utf-16-be"),
    "utf-32-le": b"\xff\xfe\x00\x00" + TABLE.encode("utf-32-le"),
    "utf-32-be": b"\x00\x00\xfe\xff" + TABLE.encode("utf-32-be"),
}


def resumed(path, names, **settings):
    """Rows of a stream that is stopped, saved and built again after each."""
    rows, state = [], None
    while True:
        stream = streams.csv(path, names, **settings)
        if state is not None:
            stream.load_state_dict(json.loads(json.dumps(state)))
        sample = next(iter(stream), None)
        if sample is None:
            return rows
        rows.append(sample.u.tolist())
        state = stream.state_dict()


def blocks(stream, size):
    """The inputs of a pass in blocks."""
    iter(stream)
    while (block := stream.block(size)) is not None:
        yield block.u[0].tolist()


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("encoding", [*MARKED, "cp1252", "cp037"])
@pytest.mark.parametrize("marked", [True, False])
def test_a_file_is_read_whatever_its_encoding_and_line_ends(write, encoding, end, marked):
    marked = marked and encoding in MARKED
    mark = MARKED[encoding][: -len(TABLE.encode(encoding))] if marked else b""
    table = TABLE if encoding != "cp037" else TABLE.replace("€", "Y")
    path = write(mark + table.replace("\n", end).encode(encoding))
    names = ["größe", "€" if encoding != "cp037" else "Y"]
    given = {} if marked else {"encoding": encoding}
    assert values(streams.csv(path, names, **given)) == ROWS
    assert resumed(path, names, **given) == ROWS


@pytest.mark.parametrize(
    ("data", "settings", "message"),
    [
        ("größe,b\n1,2\n".encode("latin-1"), {}, r"data.csv, line 1 cannot be read: it is not utf-8 text"),
        ("größe,b\n1,2\n".encode("utf-16-le"), {}, r"data.csv, line 1 cannot be read: it is not utf-8 text"),
        (TABLE.encode(), {"encoding": "latin-2000"}, "encoding='latin-2000' is not known"),
        (b"a,\0b\n1,2\n", {}, "line 1 cannot be read: it is not utf-8 text"),
        (b'"a"b,c\n1,2\n', {}, "line 1 cannot be read"),
        (b'"a,b\n1,2\n', {}, "line 1 cannot be read: unexpected end of data. A quote opens in it"),
        (b"", {}, "line 1 is empty"),
        (b"\n1,2\n", {}, "line 1 is empty"),
        (b"a,b,a\n1,2,3\n", {}, "data.csv, line 1 names 'a' 2 times, as columns 1, 3"),
        (b"x, a\n1,2\n", {}, "no column 'a'. Its columns are x,  a. Did you mean ' a'"),
        (b"a\n1\n", {"delimiter": "ab"}, "delimiter='ab' cannot separate cells"),
        (b"a\n1\n", {"delimiter": '"'}, "delimiter='\"' cannot separate cells"),
        (b"a\n1\n", {"missing": float("nan")}, "missing=nan is not known"),
        (b"a\n1\n", {"target": "a", "classes": ["x", "x"]}, "each once"),
    ],
)
def test_a_header_or_a_setting_that_cannot_be_read_is_named_with_the_remedy(write, data, settings, message):
    with pytest.raises(ConfigError, match=message):
        streams.csv(write(data), ["a"], **settings)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (b"\xff,1", "line 3 cannot be read: it is not utf-8"),
        (b"1\0,1", "line 3 cannot be read: it is not utf-8 text"),
        (b"1_0,1", "line 3: column 'a' holds '1_0', which is not a finite number"),
        (b"1e39,1", "line 3: column 'a' holds '1e39', which is larger than 3.40282e.38"),
        (b"1" * 200_000 + b",1", "line 3 cannot be read: field larger"),
    ],
)
def test_a_row_that_is_no_text_or_no_number_is_named_or_skipped(write, row, message):
    path = write(b"a,b\n1,2\n" + row + b"\n3,4\n")
    with pytest.raises(SampleError, match=message):
        list(streams.csv(path, ["a"]))
    stream = streams.csv(path, ["a"], bad="skip")
    assert values(stream) == [[1.0], [3.0]]
    assert stream.skipped == 1


@pytest.mark.parametrize("size", [None, 1, 100])
def test_a_quote_that_is_never_closed_costs_its_own_row_alone(write, size):
    lines = [f"{k},text" for k in range(1000)]
    lines[6], lines[500] = '6,"text', '500,"two\nlines"'
    path = write("x,note\n" + "\n".join(lines) + "\n")
    stream = streams.csv(path, ["x"], bad="skip")
    found = values(stream) if size is None else [u for block in blocks(stream, size) for u in block]
    assert found == [[float(k)] for k in range(1000) if k != 6]
    assert stream.skipped == 1
    with pytest.raises(SampleError, match=r"line 8 cannot be read: .*A quote opens in it that is not closed"):
        list(streams.csv(path, ["x"]))


PACKED = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress, "zst": zstd.compress}


@pytest.mark.parametrize("suffix", PACKED)
def test_a_compressed_file_is_read_and_resumed(write, suffix):
    path = write(PACKED[suffix](TABLE.encode()), f"data.csv.{suffix}")
    assert values(streams.csv(path, ["größe", "€"])) == ROWS
    assert resumed(path, ["größe", "€"]) == ROWS


def test_a_file_that_was_only_a_header_when_it_was_saved_may_grow(write):
    for header in ("x,y", "x,y\n", '"x","y"\n'):
        state = json.loads(json.dumps(streams.csv(write(header), target="y").state_dict()))
        stream = streams.csv(write(header.rstrip("\n") + "\n1,2\n"), target="y")
        stream.load_state_dict(state)
        assert values(stream) == [[1.0]]


def test_a_file_that_has_lost_rows_since_it_was_saved_raises(write):
    stream = streams.csv(write("a\n1\n2\n3\n"), ["a"])
    assert len(list(stream)) == 3
    later = streams.csv(write("a\n1\n"), ["a"])
    with pytest.raises(StreamError, match="has fewer rows"):
        later.load_state_dict(stream.state_dict())


def test_a_last_row_without_a_line_end_may_get_it_later(write):
    path = write("x\n1\n2")
    stream = streams.csv(path, ["x"])
    assert values(stream) == [[1.0], [2.0]]
    state = stream.state_dict()
    for more, rows in (("", []), ("\n3\n", [[3.0]]), ("\r\n3\r\n", [[3.0]])):
        write("x\n1\n2" + more)
        stream.load_state_dict(state)
        assert values(stream) == rows


def test_a_gap_that_no_number_tells_is_named_or_skipped(write):
    path = write("t,x\n-1.7e308,1\n1.7e308,2\n")
    with pytest.raises(SampleError, match="line 3, inf in units of 1, is not a finite number"):
        list(streams.csv(path, "x", time="t", unit=1.0))
    assert values(streams.csv(path, "x", time="t", unit=1.0, bad="skip")) == [[1.0]]
