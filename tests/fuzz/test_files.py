"""The fuzzers of files, for a moment each; `run(seconds, seed)` of each module goes on for longer."""

import pytest

from tests.fuzz import broker_messages, csv_files, record_files, toml_files, wire_messages
from tests.fuzz.spoil import ViolationError, run_cases


def test_spoiled_tables_are_read_as_a_plain_parser_reads_them_or_refused():
    counts = csv_files.run(seed=1, cases=600)
    assert counts["read"] > 50
    assert counts["stopped"] > 50
    assert counts["refused"] > 50


def test_spoiled_messages_are_taken_as_a_plain_parser_takes_them_or_counted_as_bad():
    counts = wire_messages.run(seed=1, cases=500)
    assert counts["skipped"] > 50
    assert counts["stopped"] > 50
    assert counts["read"] > 20


def test_spoiled_messages_of_brokers_are_taken_as_a_plain_parser_takes_them_or_counted_as_bad():
    counts = broker_messages.run(seed=1, cases=8)
    if not counts["cases"]:
        pytest.skip("no mosquitto and redis-server on this machine")
    assert counts["mqtt"] > 1
    assert counts["redis"] > 1


def test_spoiled_records_are_drawn_or_refused():
    counts = record_files.run(seed=1, cases=250)
    assert counts["drawn"] > 20
    assert counts["refused"] > 20


def test_spoiled_configurations_run_or_are_refused_by_name():
    counts = toml_files.run(seed=1, cases=300)
    assert counts["ran"] > 30
    assert counts["refused"] > 50


def test_a_violation_says_how_to_see_it_again(monkeypatch):
    def third(draw):
        if draw.random() > 0.9:
            raise KeyError("x")
        return "ok"

    with pytest.raises(
        ViolationError, match=r"KeyError: 'x'\nsee it again: tests.fuzz.csv_files.run\(seed=3, only="
    ):
        run_cases("csv_files", third, seed=3)
    monkeypatch.setattr("tests.fuzz.spoil.LIMIT", 0.05)

    def endless(draw):
        while True:
            try:
                draw.random()
            except Exception as error:
                raise AssertionError from error

    with pytest.raises(ViolationError, match="HangError: it computed for more than"):
        run_cases("csv_files", endless)
