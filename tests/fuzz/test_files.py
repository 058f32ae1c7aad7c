"""The fuzzers of files and streams, for a moment each; `run(seconds, seed)` of each module goes on for longer."""

import pytest

from tests.fuzz import csv_files, stacks, tables
from tests.fuzz.spoil import ViolationError, run_cases


def test_spoiled_tables_are_read_as_a_plain_parser_reads_them_or_refused():
    counts = csv_files.run(seed=1, cases=600)
    assert counts["read"] > 50
    assert counts["stopped"] > 50
    assert counts["refused"] > 50


def test_random_tables_become_the_samples_that_plain_python_makes_of_them():
    assert tables.run(cases=60)["some"] > 40


@pytest.mark.parametrize("group", range(5))
def test_random_stacks_of_streams_read_the_same_in_every_way(group):
    assert stacks.run(seed=group, cases=30)["some"] > 15


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
