"""A pipeline under faults: it must restart by itself, and end with the weights of a run that was never disturbed.

    python -m benchmarks.faults --times 20               # each kind of fault at so many random samples
    python -m benchmarks.faults --soak 30                # minutes of random kills, one every half minute

Each job is two ranks under `torchrun --max-restarts`, a checkpoint every 20 samples. A fault strikes one of the
ranks at a random sample: it is killed, stopped, loses its stream, its connections or its disk. The judge is
`LocalLearner` in this process: weights and costates must agree to the bit, so that no sample was lost or taken
twice. What each rank said when it failed is counted by the name of the error. The exit code is 1 where anything
differs or hangs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import nn

import hamlearn as hl
from benchmarks import _faulty_rank, _report
from benchmarks._faults import KINDS
from hamlearn.local import LocalLearner

ROOT = Path(__file__).parents[1]
RANKS = 2
console = Console()


def job(kinds: list[str], samples: int, seed: int, pace: float, limit: float) -> dict[str, Any]:
    """One job with these faults, in this order, at random samples and ranks; what came of it."""
    draw = random.Random(seed)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "plan").mkdir()
        moments = sorted(draw.sample(range(1, samples), len(kinds)))
        for number, (kind, moment) in enumerate(zip(kinds, moments, strict=True)):
            fault = {"kind": kind, "rank": draw.randrange(RANKS), "sample": moment}
            (folder / "plan" / f"{number:04d}.fault").write_text(json.dumps(fault))
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
        command += ["--max-restarts", str(2 * len(kinds) + 2), "-m", "benchmarks._faulty_rank", name]
        command += ["--samples", str(samples), "--pace", str(pace), "--timeout", "5"]
        paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
        settings = {"PYTHONPATH": paths, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}
        with (folder / "log.txt").open("w") as log:
            process = subprocess.Popen(
                command, env=os.environ | settings, stdout=log, stderr=log, start_new_session=True
            )
            try:
                code = process.wait(limit)
                ended = "ended" if code == 0 else f"exit code {code}: {(folder / 'log.txt').read_text()[-2000:]}"
            except subprocess.TimeoutExpired:
                ended = f"did not end within {limit:g} s"
                os.killpg(process.pid, signal.SIGTERM)  # torchrun ends its ranks
                process.wait()
        errors = [line for path in folder.glob("errors-*.txt") for line in path.read_text().splitlines()]
        return {
            "faults": len(list((folder / "plan").glob("*.struck"))),
            "samples": moments,
            "ended": ended,
            "same weights": ended == "ended" and _same(folder, samples),
            "errors": dict(Counter(line.partition(":")[0] for line in errors)),
            "seconds": round(time.monotonic() - begin, 1),
        }


def _same(folder: Path, samples: int) -> bool:
    """Whether weights and costates are those of a run in one process, to the bit."""
    hyper = hl.Hyper(eta=0.5, eta_z=0.0)
    local = LocalLearner(
        _faulty_rank.network(), nn.functional.mse_loss, hyper, groups=RANKS, align=True, stacked=False
    )
    for _ in local.run(_faulty_rank.Source(samples)):
        pass
    found: dict[str, Any] = {"theta": {}, "omega": {}}
    for rank in range(RANKS):
        for kind, tensors in torch.load(folder / f"final-{rank}.pt").items():
            found[kind] |= tensors
    theta, omega = dict(local.module.named_parameters()), local.state.omega
    return all(
        found[kind].keys() == judge.keys() and all(torch.equal(found[kind][n], w) for n, w in judge.items())
        for kind, judge in (("theta", theta), ("omega", omega))
    )


def main() -> int:
    """Let faults befall a pipeline, and tell what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=20, help="faults of each kind")
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=KINDS)
    parser.add_argument("--soak", type=float, help="minutes of random kills, one every half minute, instead")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    results: dict[str, Any] = {"seed": options.seed}
    if options.soak:
        # At this pace a sample takes about a hundredth of a second, and a restart some seconds of the half minute.
        kills, pace = max(1, int(2 * options.soak)), 0.01
        samples = int(60 * options.soak * 0.6 / pace)
        results["soak"] = job(["kill"] * kills, samples, options.seed, pace, limit=300 + 120 * options.soak)
    else:
        for kind in options.kinds:
            results[kind] = job(
                [kind] * options.times, 20 * options.times + 60, options.seed, 0.0, 120 * options.times
            )
            console.print(kind, results[kind])
    good = all(result["same weights"] for result in results.values() if isinstance(result, dict))
    console.print(results)
    _report.write(options.out, "soak" if options.soak else "faults", results, "python -m benchmarks.faults")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
