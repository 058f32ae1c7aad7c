"""Forecast an unevenly spaced series of River, and compare with the last value.

python examples/stream_waterflow.py [OUT]
"""

import itertools
import sys
import tempfile
from pathlib import Path

from river import datasets

from hamlearn.experiments.run import run


def main(out: Path) -> None:
    result = run(Path(__file__).with_suffix(".toml"), out=out)
    values = [y for _, y in datasets.WaterFlow()]
    last = sum(abs(b - a) for a, b in itertools.pairwise(values)) / (len(values) - 1)
    print(f"mean absolute error {result.scores['MAE']:.4f}; of the last value {last:.4f}")
    print(f"report: {out / 'report.html'}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp()) / "waterflow")
