"""The report: a running mean, versions and a date, an alarm, and no curve twice."""

import os
import re
from datetime import UTC, datetime

import pytest
import torch

import hamlearn
from hamlearn import record
from hamlearn.record.charts import Series


def page(rows, folder):
    return record.html(rows, folder / "report.html").read_text()


def titles(text):
    return re.findall(r"<h2>(.*?)</h2>", text)


def rows(n=60, **columns):
    for k in range(1, n + 1):
        loss = 1.0 + 0.5 * (k % 3)
        yield {"step": k, "loss": loss, **{name: of(k, loss) for name, of in columns.items()}}


def test_the_running_mean_is_the_mean_of_the_last_points():
    series = Series("loss", [float(k) for k in range(200)], [float(k * k % 17) for k in range(200)])
    mean = series.averaged("running mean")
    assert mean.x == series.x
    for k in range(200):
        last = series.y[max(0, k - 9) : k + 1]
        assert mean.y[k] == pytest.approx(sum(last) / len(last), abs=1e-12)


def test_the_loss_is_shown_with_its_running_mean(tmp_path):
    text = page(rows(), tmp_path)
    assert re.search(r"running mean <b>1\.\d+</b>", text)
    assert text.count('class="line k1 faint"') == 1
    # A few points are their own summary.
    assert "running mean <b>" not in page(rows(5), tmp_path)


def test_a_hamiltonian_that_is_the_loss_is_not_drawn_a_second_time(tmp_path):
    assert "Hamiltonian" not in titles(page(rows(hamiltonian=lambda k, loss: 0.5 * loss), tmp_path))
    assert "Hamiltonian" in titles(page(rows(hamiltonian=lambda k, loss: 0.5 * loss + 0.01 * (k % 2)), tmp_path))
    assert "Hamiltonian" in titles(page(rows(hamiltonian=lambda k, loss: float(k)), tmp_path))


def test_a_metric_whose_window_was_never_full_is_drawn_once(tmp_path):
    same = page(rows(MAE=lambda k, loss: 1 / k, **{"MAE (window)": lambda k, loss: 1 / k}), tmp_path)
    assert "MAE <b>" in same
    assert "MAE (window) <b>" not in same
    other = page(rows(MAE=lambda k, loss: 1 / k, **{"MAE (window)": lambda k, loss: 1 / (k + 1)}), tmp_path)
    assert "MAE (window) <b>" in other


def test_versions_and_the_date_of_the_last_row_are_told(tmp_path):
    path = tmp_path / "run.jsonl"
    lines = record.JsonLines(path)
    for row in rows():
        lines.put(row, None)
    lines.close()
    when = datetime(2024, 2, 29, 12, 34, tzinfo=UTC).timestamp()
    os.utime(path, (when, when))
    text = page(path, tmp_path)
    assert f"2024-02-29 12:34 UTC · hamlearn {hamlearn.__version__}, PyTorch {torch.__version__}" in text


def test_an_alarm_stands_above_all_while_it_lasts(tmp_path):
    assert "since sample 1,250" in page(rows(diverging=lambda k, loss: 1250 if k > 50 else None), tmp_path)
    assert '<p class="alarm">' not in page(rows(diverging=lambda k, loss: 1250 if k < 50 else None), tmp_path)
    assert "diverging" not in titles(page(rows(diverging=lambda k, loss: 1250), tmp_path))
