"""The examples run, and print what they promise."""

import re
import runpy
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def example(name):
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"]


def test_the_waterflow_example_beats_the_last_value(tmp_path, capsys):
    example("stream_waterflow")(tmp_path / "out")
    mine, last = re.search(r"error ([\d.]+); of the last value ([\d.]+)", capsys.readouterr().out).groups()
    assert float(mine) < float(last)
    assert (tmp_path / "out" / "report.html").exists()


def test_the_csv_example_goes_on_where_it_stopped_and_learns(tmp_path, capsys):
    example("stream_csv")(tmp_path)
    losses = [float(x) for x in re.findall(r"mean loss ([\d.]+)", capsys.readouterr().out)]
    assert len(losses) == 6
    assert losses[-1] < losses[0] / 2


def test_the_socket_example_accounts_for_every_line_and_all_time(capsys):
    example("stream_socket")(2000)
    counts = re.search(r"sent (\d+), learned from (\d+), dropped (\d+), time (\d+)", capsys.readouterr().out)
    sent, taken, dropped, time = map(int, counts.groups())
    assert sent == taken + dropped == 2000
    # From the first line that was processed, which has tau 1, to the last that was sent, no time is lost.
    assert taken <= time <= 2000
