"""A unit of time that is found from the data, told, and kept."""

import logging
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from hamlearn import streams
from hamlearn.errors import ConfigError, SampleError
from hamlearn.experiments.run.build import build_stream
from hamlearn.experiments.run.config import check
from hamlearn.interop.river import from_river


def taus(stream):
    return [sample.tau for sample in stream]


def sensor(count=50):
    """Time stamps of a sensor at 500 Hz that stops for a minute now and then."""
    t = 0.0
    for k in range(count):
        yield t
        t += 60.0 if k % 10 == 9 else 0.002


def in_minutes(count=40):
    return [datetime(2024, 1, 1, tzinfo=UTC) + timedelta(minutes=3 * k) for k in range(count)]


def test_the_median_of_the_first_gaps_becomes_one_and_is_told(caplog):
    stream = streams.timed(list(sensor()), range(50))
    assert stream.unit is None
    with caplog.at_level(logging.WARNING, "hamlearn"):
        found = taus(stream)
    assert stream.unit == pytest.approx(0.002, rel=1e-12)
    assert found[1] == pytest.approx(1.0, rel=1e-12)
    assert found[10] == pytest.approx(30_000.0, rel=1e-12)
    assert [record.getMessage() for record in caplog.records] == [
        "one unit of time is 0.002: the median of the first gaps between time stamps. Give unit=... for another"
    ]


@pytest.mark.parametrize(
    "stamps",
    [
        in_minutes(),
        [str(stamp) for stamp in in_minutes()],
        np.arange("2024-01-01", "2024-01-02", 180, "datetime64[s]"),
    ],
    ids=["datetime", "text", "NumPy"],
)
def test_the_unit_of_dates_is_told_in_seconds(caplog, stamps):
    with caplog.at_level(logging.WARNING, "hamlearn"):
        assert taus(streams.timed(list(stamps)[:40], range(40)))[1:] == [1.0] * 39
    assert caplog.records[0].getMessage().startswith("one unit of time is 180 s: the median")


def test_only_the_first_gaps_count():
    stream = streams.timed([*range(33), *range(40, 1000, 7)], range(33 + 138))
    assert taus(stream)[-1] == 7.0


def test_a_unit_that_is_given_is_the_unit():
    assert taus(streams.timed([0.0, 2.0, 6.0], range(3), unit=1.0)) == [None, 2.0, 4.0]
    with pytest.raises(ConfigError, match="unit='minutes' is not a unit of time"):
        streams.timed([0.0], [1.0], unit="minutes")
    with pytest.raises(ConfigError, match="unit='auto'"):
        streams.live(lambda: iter([]), unit="auto")


def test_a_bad_stamp_among_the_first_ones_is_named_when_its_turn_comes():
    samples = iter(streams.timed([0.0, 1.0, "noon", 2.0], range(4)))
    assert [next(samples).tau, next(samples).tau] == [None, 1.0]
    with pytest.raises(SampleError, match="'noon' at sample 2"):
        next(samples)


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "sensor.csv"
    lines = [f"{t!r},{k}" for k, t in enumerate(sensor())]
    path.write_text("\n".join(["t,x", *lines]) + "\n")
    return path


def make(kind, table):
    if kind == "csv":
        return streams.csv(table, u=["x"], time="t")
    if kind == "river":
        dataset = [({"x": float(k), "at": t}, 1.0) for k, t in enumerate(in_minutes())]
        return from_river(dataset)
    return streams.timed(list(sensor()), range(50))


@pytest.mark.parametrize("kind", ["timed", "csv", "river"])
def test_the_unit_goes_on_in_a_resumed_stream(kind, table, caplog):
    whole = taus(make(kind, table))
    stream = make(kind, table)
    samples = iter(stream)
    for _ in range(35):
        next(samples)
    state = stream.state_dict()
    caplog.clear()
    again = make(kind, table)
    again.load_state_dict(state)
    assert taus(again) == whole[35:]
    assert not caplog.records  # it was found, and told, before


@pytest.mark.parametrize(("unit", "expected"), [("", 1.0), ('unit = "auto"', 1.0), ("unit = 1.0", 0.002)])
def test_a_table_in_toml_finds_its_unit_unless_told(table, unit, expected):
    import tomllib

    text = f'[stream]\nkind = "csv"\npath = "{table.name}"\nu = ["x"]\ntime = "t"\n{unit}'
    stream, _ = build_stream(check(tomllib.loads(text)), table.parent)
    assert taus(stream)[1] == pytest.approx(expected, rel=1e-12)
