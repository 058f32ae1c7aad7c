"""The long profile: `python -m tests.fuzz --minutes 30 --seed 0 --out benchmarks/results/fuzz.md`.

Every module of this package that has a function `run(seconds, seed) -> dict` gets a share of the time, in two
processes. A failure stops nothing: all are listed in the summary, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import importlib
import json
import pkgutil
import platform
import signal
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import torch

import hamlearn as hl
import tests.fuzz
from tests.fuzz import differential

DIFFERENTIAL = 0.75


def fuzzers() -> list[str]:
    """Names of the modules that define `run`."""
    names = sorted(module.name for module in pkgutil.iter_modules(tests.fuzz.__path__))
    plain = [name for name in names if not name.startswith(("_", "test_"))]
    return [
        name for name in plain if callable(getattr(importlib.import_module(f"tests.fuzz.{name}"), "run", None))
    ]


def shares(names: list[str], seconds: float) -> dict[str, float]:
    """Three quarters for the differential fuzzer, the rest in equal parts for the others."""
    others = [name for name in names if name != "differential"]
    part = DIFFERENTIAL if others else 1.0
    return {"differential": part * seconds} | {name: (1 - part) * seconds / len(others) for name in others}


def work(seconds: float, seed: int, out: Path, only: str | None, cases: int | None) -> None:
    """One process: each fuzzer for its share, one after the other; what they found goes to a file."""
    most = {} if cases is None else {"cases": cases}
    names = [only] if only else fuzzers()
    found: dict[str, Any] = {}
    for name, share in ({only: seconds} if only else shares(names, seconds)).items():
        try:
            found[name] = importlib.import_module(f"tests.fuzz.{name}").run(share, seed, **most)
        except Exception:
            found[name] = {
                "cases": {},
                "seed": seed,
                "failures": [{"what": name, "message": traceback.format_exc()}],
            }
        out.write_text(json.dumps(found, default=str))


def total(cases: Any) -> int:
    return sum(cases.values()) if isinstance(cases, dict) else int(cases or 0)


def summary(results: list[dict[str, Any]], seconds: float) -> tuple[str, int]:
    """The findings of all processes as a page, and how many failures there are."""
    lines = [
        "# Fuzzing",
        "",
        f"- hamlearn {getattr(hl, '__version__', 'of the working tree')}, torch {torch.__version__}, "
        f"numpy {np.__version__}, Python {platform.python_version()}, {platform.machine()}",
        f"- {len(results)} processes, {seconds / 60:.1f} minutes of wall time",
        "",
        "| fuzzer | process | seed | seconds | cases | failures |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    failures: list[tuple[str, Any]] = []
    kinds: dict[str, int] = {}
    done: dict[str, int] = {}
    for process, result in enumerate(results):
        for name, found in result.items():
            cases, wrong = found.get("cases", found.get("files", 0)), found.get("failures", [])
            row = [name, process, found.get("seed"), found.get("seconds"), f"{total(cases):,}", len(wrong)]
            lines.append("| " + " | ".join(map(str, row)) + " |")
            failures += [(name, failure) for failure in wrong]
            for kind, count in cases.items() if isinstance(cases, dict) else ():
                kinds[f"{name}: {kind}"] = kinds.get(f"{name}: {kind}", 0) + count
            for what, count in found.get("done", {}).items():
                done[what] = done.get(what, 0) + count
    lines += ["", "## Cases by kind", "", "| kind | cases |", "| --- | --- |"]
    lines += [f"| {kind} | {count:,} |" for kind, count in sorted(kinds.items())]
    lines += ["", "## What was done in them", "", "| what | times |", "| --- | --- |"]
    lines += [f"| {what.replace('|', '/')} | {count:,} |" for what, count in sorted(done.items())]
    lines += ["", f"## Failures: {len(failures)}", ""]
    for name, failure in failures:
        if not isinstance(failure, dict):
            failure = {"what": str(failure)}
        lines += [f"### {name}: {failure.get('what')}", "", "```text"]
        lines += [str(value) for key, value in failure.items() if key != "what"] + ["```", ""]
    return "\n".join(lines).rstrip() + "\n", len(failures)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0, help="process p takes seed + p")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, help="summary in Markdown; the same as JSON goes beside it")
    parser.add_argument("--only", help="one fuzzer alone, e.g. differential")
    parser.add_argument(
        "--cases", type=int, help="with --only: at most so many in each process, e.g. 1000 of tables"
    )
    parser.add_argument("--replay", help="play one case again: what a failure says")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.replay:
        differential.quiet()
        print(dict(differential.replay(given.replay)))
        return 0
    if given.worker:
        work(60 * given.minutes, given.seed, given.worker, given.only, given.cases)
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    begin = monotonic()
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"{process}.json" for process in range(given.processes)]
        workers = []
        for process, file in enumerate(files):
            print(f"process {process}: seed {given.seed + process}, {given.minutes:g} minutes", flush=True)
            command = [sys.executable, "-m", "tests.fuzz", "--worker", str(file), "--minutes", str(given.minutes)]
            command += ["--seed", str(given.seed + process), *(["--only", given.only] if given.only else [])]
            command += ["--cases", str(given.cases)] if given.cases else []
            workers.append(subprocess.Popen(command))
        try:
            codes = [worker.wait() for worker in workers]
        finally:
            for worker in workers:
                worker.terminate()
        results = []
        for file, code in zip(files, codes, strict=True):
            found = json.loads(file.read_text()) if file.exists() else {}
            if code:
                found["process"] = {"failures": [{"what": f"the process ended with code {code}"}]}
            results.append(found)
    page, failures = summary(results, monotonic() - begin)
    print(page)
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(page)
        given.out.with_suffix(".json").write_text(json.dumps(results, indent=1, default=str) + "\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
