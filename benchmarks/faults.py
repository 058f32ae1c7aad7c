"""A pipeline under faults: it must restart by itself, and end with the weights of a run that was never disturbed.

    python -m benchmarks.faults --times 20               # each kind of fault at so many random samples
    python -m benchmarks.faults --soak 30                # minutes of random kills, one every half minute

Each job is two ranks under `torchrun --max-restarts`, a checkpoint every 20 samples. A fault strikes one of the
ranks at a random sample: it is killed, stopped, loses its stream, its connections or its disk. In a soak, ranks
are killed from outside at random moments, while they start, compute or save. The judge is
`LocalLearner` in this process: weights and costates must agree bit-for-bit, so that no sample was lost or taken
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


def job(kinds: list[str], samples: int, seed: int, limit: float) -> dict[str, Any]:
    """One job with these faults, in this order, at random samples and ranks; what came of it."""
    draw = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "plan").mkdir()
        moments = sorted(draw.sample(range(1, samples), len(kinds)))
        for number, (kind, moment) in enumerate(zip(kinds, moments, strict=True)):
            fault = {"kind": kind, "rank": draw.randrange(RANKS), "sample": moment}
            (folder / "plan" / f"{number:04d}.fault").write_text(json.dumps(fault))
        with Job(folder, samples, 2 * len(kinds) + 2) as running:
            running.wait(limit)
        faults = [json.loads(path.read_text()) for path in (folder / "plan").glob("*.struck")]
        silent = sum(fault["kind"] in ("kill", "stop") for fault in faults)
        return {"faults": len(faults), "samples": moments} | running.outcome(samples, silent)


def soak(minutes: float, seed: int) -> dict[str, Any]:
    """Minutes of kills from outside, each at a random moment of its half minute, whatever the rank is doing."""
    draw, kills = random.Random(seed), 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "plan").mkdir()
        with Job(folder, 10**9, 100 + int(20 * minutes), pace=0.02) as running:
            begin = time.monotonic()
            for half in range(max(1, int(2 * minutes))):
                time.sleep(max(0.0, begin + 30 * (half + draw.random()) - time.monotonic()))
                kills += running.kill(draw.randrange(RANKS))
            time.sleep(max(0.0, begin + 60 * minutes - time.monotonic()))
            (folder / "plan" / "stop").touch()
            running.wait(600)
        end = folder / "plan" / "end"
        samples = int(end.read_text()) if end.exists() else 0
        return {"minutes": minutes, "kills": kills, "samples": samples} | running.outcome(samples, kills)


class Job:
    """Two ranks under torchrun, which starts them again.

    Args:
        folder: For all that the ranks keep and tell.
        samples: Length of the stream.
        restarts: How often ranks may be started again.
        pace: Seconds from sample to sample.
    """

    def __init__(self, folder: Path, samples: int, restarts: int, pace: float = 0.0) -> None:
        self._folder, self._begin, self._ended = folder, time.monotonic(), "did not end"
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
        command += ["--max-restarts", str(restarts), "-m", "benchmarks._faulty_rank", str(folder)]
        command += ["--samples", str(samples), "--pace", str(pace), "--timeout", "5"]
        paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
        settings = {"PYTHONPATH": paths, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}
        # Ranks have some seconds more than the time limit to say what they have noticed; then torchrun kills them.
        settings |= {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "8"}
        self._log = (folder / "log.txt").open("w")
        self._process = subprocess.Popen(
            command, env=os.environ | settings, stdout=self._log, stderr=self._log, start_new_session=True
        )

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *error: object) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGTERM)  # torchrun ends its ranks
            self._process.wait()
        self._log.close()

    def wait(self, limit: float) -> None:
        """Wait for the job to end by itself."""
        try:
            code = self._process.wait(limit)
        except subprocess.TimeoutExpired:
            self._ended = f"did not end within {limit:g} s"
        else:
            told = (self._folder / "log.txt").read_text()[-2000:]
            self._ended = "ended" if code == 0 else f"exit code {code}: {told}"

    def kill(self, rank: int) -> bool:
        """Kill a rank, if it is there."""
        lives = self._lives(rank)
        if not lives:
            return False
        try:
            # A process of that number may be another one's by now.
            ours = str(self._folder) in Path(f"/proc/{lives[-1]}/cmdline").read_text()
            if ours:
                os.kill(int(lives[-1]), signal.SIGKILL)
        except (FileNotFoundError, ProcessLookupError):
            return False
        return ours

    def outcome(self, samples: int, silent: int) -> dict[str, Any]:
        """How the job has ended, and whether weights and costates are those of an undisturbed run.

        Args:
            samples: How many it had to take.
            silent: How many lives of ranks were ended such that they could not say anything.
        """
        folder = self._folder
        errors = [line for path in folder.glob("errors-*.txt") for line in path.read_text().splitlines()]
        lives = [len(self._lives(rank)) for rank in range(RANKS)]
        seconds = time.monotonic() - self._begin
        return {
            "ended": self._ended,
            "same weights": self._ended == "ended" and _same(folder, samples),
            "starts of each rank": lives,
            "ends without a word": sum(lives) - RANKS - silent - len(errors),
            "errors": dict(Counter(line.partition(":")[0] for line in errors)),
            "seconds": round(seconds, 1),
        }

    def _lives(self, rank: int) -> list[str]:
        path = self._folder / f"lives-{rank}.txt"
        return path.read_text().split() if path.exists() else []


def _same(folder: Path, samples: int) -> bool:
    """Whether weights and costates are those of a run in one process, bit-for-bit."""
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
        results["soak"] = soak(options.soak, options.seed)
    else:
        for kind in options.kinds:
            results[kind] = job([kind] * options.times, 20 * options.times + 60, options.seed, 120 * options.times)
            console.print(kind, results[kind])
    good = all(result["same weights"] for result in results.values() if isinstance(result, dict))
    console.print(results)
    how = f"--soak {options.soak:g}" if options.soak else f"--times {options.times}"
    name, rerun = "soak" if options.soak else "faults", f"python -m benchmarks.faults {how}"
    _report.write(options.out, name, results, rerun)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
