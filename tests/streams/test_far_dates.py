"""Dates of NumPy's before 1678 and after 2262 are as far away as they say."""

from datetime import datetime, timedelta

import numpy as np
import pandas as pd
import pytest
import torch

from hamlearn import streams
from hamlearn.errors import SampleError
from hamlearn.streams.clock import since_1970, to_seconds
from tests.streams.reading import blocks_of

FAR = ["0001-01-08", "1400-01-01", "1677-09-20", "2262-04-13", "2700-01-01", "9999-12-31"]
UNITS = ["Y", "M", "W", "D", "h", "m", "s", "ms", "us", "7D", "25s"]
YEAR = 365.25 * 86_400


@pytest.mark.parametrize("unit", UNITS)
def test_far_dates_count_the_seconds_that_python_counts(unit) -> None:
    dates = np.array(FAR, dtype="datetime64[us]").astype(f"datetime64[{unit}]")
    as_python = dates.astype("datetime64[us]").tolist()
    want = [(date - datetime(1970, 1, 1)) / timedelta(seconds=1) for date in as_python]
    assert since_1970(dates).tolist() == want
    assert [to_seconds(date, "") for date in dates] == want


@pytest.mark.parametrize(
    "times", [["2024-01-01", "2025-01-01", "2700-01-01"], ["1400-01-01", "1401-01-01", "2024-01-01"]]
)
@pytest.mark.parametrize("backwards", ["raise", "skip"])
def test_a_stream_of_far_dates_has_the_steps_of_pythons(times, backwards) -> None:
    dates, u = np.array(times, dtype="datetime64[D]"), torch.zeros(3, 2)
    made = [
        streams.timed(stamps, u, unit=YEAR, backwards=backwards)
        for stamps in (dates.astype("datetime64[us]").tolist(), dates, dates)
    ]
    want, singly = [sample.tau for sample in made[0]], [sample.tau for sample in made[1]]
    in_blocks = [block.sample(k).tau for block in blocks_of(made[2], 2) for k in range(block.count)]
    assert want == singly == in_blocks
    assert len(want) == 3
    assert max(want[1:]) > 600


def test_a_table_of_far_dates_has_the_steps_of_pythons(tmp_path) -> None:
    days = ["2024-01-01", "2025-01-01", "2700-01-01", "9999-12-31"]
    dates = np.array(days, dtype="datetime64[D]")
    gaps = (dates[1:] - dates[:-1]).astype(np.int64) / 1.0
    file = tmp_path / "far.csv"
    file.write_text("t,x\n" + "".join(f"{day},1.0\n" for day in days))
    settings = {"u": "x", "time": "t", "unit": timedelta(days=1)}
    frame = pd.DataFrame({"t": dates.astype("datetime64[s]"), "x": 1.0})
    sources = [
        {"t": dates, "x": [1.0] * 4},
        [{"t": date, "x": 1.0} for date in dates],
        [{"t": pd.Timestamp(day), "x": 1.0} for day in days],
        frame,
        file,
    ]
    for source in sources:
        assert [sample.tau for sample in streams.from_any(source, **settings)] == [None, *gaps]


def test_no_date_is_still_named() -> None:
    times = np.array(["2024-01-01", "NaT", "9999-12-31"], dtype="datetime64[D]")
    for read in (list, lambda stream: list(blocks_of(stream, 3))):
        with pytest.raises(SampleError, match=r"the time stamp at sample 1 is nan"):
            read(streams.timed(times, torch.zeros(3, 1), unit=YEAR))
