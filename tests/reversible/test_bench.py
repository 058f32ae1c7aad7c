import json

import pytest
import torch

from benchmarks import _resident, memory


def test_the_memory_benchmark_writes_a_dated_report_and_a_figure(tmp_path):
    pytest.importorskip("matplotlib")
    report = memory.run(tmp_path, quick=True, device="cpu", long_runs=False)
    date = report["date"][:10]
    written = json.loads((tmp_path / f"{date}-memory-cpu-quick.json").read_text())
    assert written == report
    assert (tmp_path / f"{date}-memory-cpu-quick.png").read_bytes().startswith(b"\x89PNG")
    assert report["machine"]["versions"]["torch"] == torch.__version__
    assert report["figures"]["memory_deep_over_shallow"] <= 1.05
    errors = {row["method"]: row["gradient_error"] for row in report["rows"]}
    assert errors["reversible"] < 1e-5


@pytest.mark.slow
def test_resident_memory_is_measured_with_both_settings_of_the_allocator():
    rows = _resident.measure_resident(quick=True)
    assert [(row["depth"], row["allocator"]) for row in rows] == [
        (5, "as it is"),
        (5, "MALLOC_MMAP_THRESHOLD_=65536"),
    ]
    assert all(row["peak_resident_bytes"] > 4 * row["weights"] for row in rows), (
        "gradients, at least, are resident"
    )
