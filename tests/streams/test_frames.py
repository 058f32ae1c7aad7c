"""Tables as frames and columnar files: the same samples as the CSV file, read lazily, resumed at any row."""

import json
import sys
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
import torch

from hamlearn import streams
from hamlearn.errors import ConfigError
from hamlearn.streams import rows as sources

pl = pytest.importorskip("polars")
pd = pytest.importorskip("pandas")

SETTINGS = {
    "target": "outcome",
    "time": "when",
    "unit": timedelta(hours=1),
    "classes": 3,
    "categories": {"shop": 5},
    "hashed": {"customer": 4},
    "missing": "indicate",
}


def rows(count=300):
    begin, draw = datetime(2024, 3, 30, tzinfo=UTC), np.random.default_rng(0)
    return [
        {
            "when": begin + timedelta(minutes=30 * k),
            "price": None if k % 7 == 3 else round(float(draw.normal()), 4),
            "items": int(draw.integers(5)),
            "express": bool(draw.integers(2)),
            "shop": [None, "north", "south", "west"][draw.integers(4)],
            "customer": int(draw.integers(10**6)),
            "outcome": [None, "kept", "returned"][draw.integers(3)],
        }
        for k in range(count)
    ]


def told(samples):
    return [(s.u.tolist(), None if s.target is None else s.target.item(), s.tau) for s in samples]


def forms(path):
    """The same table in all the forms in which it can come."""
    frame = pl.DataFrame(rows())
    frame.write_csv(path / "t.csv")
    frame.write_csv(path / "t.csv.zst", compression="zstd")
    frame.write_parquet(path / "t.parquet", row_group_size=100)
    frame.write_ipc(path / "t.arrow")
    columns = {name: [row[name] for row in rows()] for name in rows()[0]}
    return {
        "csv": lambda: streams.csv(path / "t.csv", **SETTINGS),
        "zstd": lambda: streams.csv(path / "t.csv.zst", **SETTINGS),
        "parquet": lambda: streams.csv(path / "t.parquet", **SETTINGS),
        "arrow": lambda: streams.from_any(path / "t.arrow", **SETTINGS),
        "polars": lambda: streams.from_rows(frame, **SETTINGS),
        "lazy": lambda: streams.from_any(frame.lazy(), **SETTINGS),
        "pandas": lambda: streams.from_any(pd.DataFrame(columns), **SETTINGS),
        "columns": lambda: streams.from_rows(columns, **SETTINGS),
        "rows": lambda: streams.from_rows(rows(), **SETTINGS),
        "fresh": lambda: streams.from_rows(lambda: iter(rows()), **SETTINGS),
    }


FORMS = ["csv", "zstd", "parquet", "arrow", "polars", "lazy", "pandas", "columns", "rows", "fresh"]


@pytest.mark.parametrize("form", FORMS)
def test_a_table_has_the_same_samples_in_every_form_and_resumes_in_each(tmp_path, monkeypatch, form):
    monkeypatch.setattr(sources, "CHUNK", 70)
    made = forms(tmp_path)
    want = told(made["rows"]())
    assert len(want) == 300
    stream = made[form]()
    assert told(stream) == want
    assert stream.classes == made["rows"]().classes or stream.classes == ["kept", "returned"]
    streams.check(made[form], places=[0, 1, 2, 150, 299, 300])
    samples = iter(stream)
    assert told([next(samples) for _ in range(77)]) == want[:77]
    later = made[form]()
    later.load_state_dict(json.loads(json.dumps(stream.state_dict())))
    assert told(later) == want[77:]


def test_encode_takes_a_whole_frame_and_answers_one_input_a_row(tmp_path):
    table = forms(tmp_path)["csv"]()
    assert len(list(table)) == 300
    asked = rows()[:20]
    state = json.dumps(table.state_dict())
    singly = torch.stack([table.encode(row) for row in asked])
    for frame in (asked, pl.DataFrame(asked), pd.DataFrame(asked)):
        assert torch.equal(table.encode(frame), singly)
    scaled = streams.standardize(table)
    assert len(list(scaled)) == 300
    singly = torch.stack([scaled.encode(row) for row in asked])
    assert torch.equal(scaled.encode(pl.DataFrame(asked)), singly)
    assert json.dumps(table.state_dict()) == state


def test_a_columnar_file_without_polars_names_the_command_that_installs_it(tmp_path, monkeypatch):
    forms(tmp_path)
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(ConfigError, match=r"read by polars: pip install .*\[tables\]"):
        streams.csv(tmp_path / "t.parquet", **SETTINGS)
    assert len(list(streams.from_rows(rows(), **SETTINGS))) == 300
    assert len(list(streams.csv(tmp_path / "t.csv", **SETTINGS))) == 300


def test_a_columnar_file_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "t.parquet").write_bytes(b"not a table")
    with pytest.raises(ConfigError, match=r"t.parquet' cannot be read"):
        streams.csv(tmp_path / "t.parquet")


def test_what_only_a_csv_file_has_is_not_accepted_for_a_columnar_one(tmp_path):
    forms(tmp_path)
    for given in ({"delimiter": ";"}, {"encoding": "utf-8"}):
        with pytest.raises(ConfigError, match=r"t.parquet' has no delimiter and no encoding"):
            streams.csv(tmp_path / "t.parquet", **SETTINGS, **given)
