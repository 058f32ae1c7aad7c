"""The fuzzers of files, for a moment each; `run(seconds, seed)` of each module goes on for longer."""

import pytest

from tests.fuzz import csv_files
from tests.fuzz.spoil import ViolationError, run_cases


def test_spoiled_tables_are_read_as_a_plain_parser_reads_them_or_refused():
    counts = csv_files.run(seed=1, cases=600)
    assert counts["read"] > 50
    assert counts["stopped"] > 50
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
