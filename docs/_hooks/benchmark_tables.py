"""Writes the tables of the Benchmarks page from the newest reports in `benchmarks/results`.

A page asks for one by `<!-- generated: benchmark NAME -->`. A figure within a sentence is asked for by
`{figure NAME}`, for example `{figure scan over jax: RNN, 30 neurons}`. No figure is copied by hand.
"""

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
Rows = Iterable[Iterable[Any]]
PEERS = {  # measured elsewhere, by the same protocol on the same rows: the best of three
    "electricity": 0.893,
    "covertype": 0.9385,
    "airlines": 0.6928,
    "agrawal": 0.9997,
    "shuttle": 0.9972,
    "adult": 0.8462,
    "weather": 0.7881,
    "squares": 0.8778,
    "bike": 0.723,
    "fried": 0.824,
    "california_housing": 0.687,
    "diamonds": 0.964,
    "kings_county": 0.644,
}
"""Accuracy of the best of ARF, SRP and leveraging bagging of ten trees; R² of the best of ARF, SOKNL, FIMT-DD."""


@cache
def report(name: str) -> dict[str, Any]:
    """The newest report of a benchmark: files are called `YYYY-MM-DD-NAME.json`."""
    found = sorted(RESULTS.glob(f"20[0-9][0-9]-[0-9][0-9]-[0-9][0-9]-{name}.json"))
    if not found:
        raise FileNotFoundError(f"no report of the benchmark {name!r} in {RESULTS.name}")
    return json.loads(found[-1].read_text()) | {"file": found[-1].name}


def source(name: str) -> str:
    """Where the figures of a table are from, as a line below it."""
    found = report(name)
    machine = found.get("environment") or found["machine"]
    versions = machine.get("versions", machine)
    device = machine.get("gpu") or machine.get("processor") or machine.get("name")
    if machine.get("cores") and not machine.get("gpu"):
        device = f"{device}, {machine['cores']} cores"
    date = (found.get("date") or machine["date"])[:10]
    again = found.get("rerun", "hamlearn bench memory")
    return f"*{date}, {device}, PyTorch {versions['torch']}. Measure again: `{again}`.*"


def table(name: str, columns: Iterable[str], rows: Rows) -> str:
    """A table in Markdown with its source below."""
    return f"{_lines(list(columns), rows)}\n\n{source(name)}"


def _lines(head: list[str], rows: Rows) -> str:
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def _between(values: Iterable[float]) -> str:
    """The smallest and the largest of some ratios."""
    found = sorted(values)
    low, high = f"{found[0]:.2f}", f"{found[-1]:.2f}"
    return low if low == high else f"{low} to {high}"


def step() -> str:
    """Eager steps against the optimizer's."""
    models: dict[str, list[Any]] = defaultdict(list)
    for cell in report("step")["results"]["cells"]:
        models[cell["model"]].append(cell)
    rows = [
        [model, f"{min(cell['microseconds']['sgd'] for cell in cells):.0f} µs"]
        + [_between(cell["ratios"][role] for cell in cells) for role in ("output", "state")]
        for model, cells in models.items()
    ]
    return table("step", ["model", "`torch.optim.SGD`", "as output net, of SGD", "as state net, of SGD"], rows)


def compiled(name: str = "stream-single") -> str:
    """The compiled engine against PyTorch's and JAX's loops."""
    rows = []
    for cell in report(name)["results"]["single"]["cells"]:
        took = cell["microseconds"]
        rows.append(
            [
                cell["workload"],
                f"{took['sgd_eager']:.0f} µs",
                f"{took['jax_scan']:.2f} µs",
                f"{took['hl_scan']:.2f} µs",
                f"**{took['jax_scan'] / took['hl_scan']:.2f} ×**",
                f"{took['hl_compiled']:.2f} µs",
                f"{took['jax_scan'] / took['hl_compiled']:.2f} ×",
            ]
        )
    head = ["a step of", "PyTorch, SGD", "JAX `lax.scan`", "`scan`", "over JAX", "`run`, with reports", "over JAX"]
    return table(name, head, rows)


def fair() -> str:
    """Every rule of credit on the same net."""
    found = report("fair")["results"]
    rows: dict[str, list[Any]] = {}
    for row in found["rows"]:
        if row["name"] not in rows:
            rows[row["name"]] = [f"{row['microseconds']:.1f} µs"]
        lost = f" ({row['diverged']} of {found['seeds']} diverged)" if row["diverged"] else ""
        rows[row["name"]].append(f"{row['score']:.3f} ± {row['standard error']:.3f}{lost}")
    head = ["rule", *found["tasks"], "a step"]
    return table("fair", head, ([name, *cells[1:], cells[0]] for name, cells in rows.items()))


def estimators() -> str:
    """The default estimators against forests."""
    rows = []
    for found in report("streams")["results"]["streams"]:
        scores = found["scores"]
        what = "accuracy" if "accuracy" in scores else "R2"
        base = (
            max(scores["last class"], scores["majority"]) if what == "accuracy" else scores["R2 of the last value"]
        )
        ours, best = scores[what], PEERS[found["stream"]]
        rows.append(
            [
                found["stream"],
                f"{found['rows']:,} × {found['columns']}",
                what.replace("R2", "R²"),
                f"**{ours:.4f}**" if ours > best else f"{ours:.4f}",
                f"{best:.4f}" if ours > best else f"**{best:.4f}**",
                f"{base:.3f}",
                f"{found['microseconds a row']:.0f} µs",
            ]
        )
    head = ["stream", "rows × columns", "score", "default estimator", "best forest of ten", "baseline", "a row"]
    return table("streams", head, rows)


def forecasts() -> str:
    """Errors of the forecaster, and of others, at the first and the last step."""
    rows, names = [], []
    for name, found in report("forecast")["results"]["series"].items():
        errors = found["mean absolute error"]
        names = list(errors)
        for step in errors["Forecaster"]:
            best = min(error[step] for error in errors.values())
            shown = [f"**{e[step]:.4g}**" if e[step] == best else f"{e[step]:.4g}" for e in errors.values()]
            rows.append([name.replace("_", " "), f"{found['values']:,}", step, *shown])
    return table("forecast", ["series", "values", "step", *names], rows)


def sources() -> str:
    """Rows a second, by where they come from."""
    cells = report("stream-sources")["results"]["sources"]["cells"]
    rows = [[name, f"{cell['read']:,}", f"{cell['learned']:,}"] for name, cell in cells.items()]
    return table("stream-sources", ["rows from", "read a second", "learned from a second"], rows)


def live() -> str:
    """Samples a second of live sources."""
    cells = report("stream-live")["results"]["live"]["cells"]
    rows = [[name, f"{value:,}"] for name, value in cells.items()]
    return table("stream-live", ["network, source, engine", "samples a second"], rows)


def memory(name: str = "memory-cpu") -> str:
    """Peak memory and time of reversible nets against plain backpropagation."""
    methods: dict[str, dict[int, Any]] = defaultdict(dict)
    for row in report(name)["rows"]:
        methods[row["method"]][row["depth"]] = row
    plain = methods["plain"]
    rows = [
        [method]
        + [
            f"{row['peak_bytes'] / 2**20:.0f} MiB, {row['seconds'] / plain[depth]['seconds']:.2f} ×"
            for depth, row in rows.items()
        ]
        for method, rows in methods.items()
    ]
    return table(name, ["method", *(f"{depth:,} steps" for depth in plain)], rows)


def others() -> str:
    """Single figures, each with its report."""
    echo, pipeline = report("echo")["results"], report("pipeline-free-cores")["results"]
    endless, times = report("endless")["results"]["ratio"], pipeline["two processes / one"]
    found = [
        ("echo of 200 tokens, of BPTT with SGD", f"{echo['ratios']['echo']:.2f}", "echo"),
        ("memory after 1,000,000 steps, of that after 10,000", f"{endless:.4f}", "endless"),
        ("pipeline of two processes, of one", f"{times:.2f} ×", "pipeline-free-cores"),
    ]
    rows = [[what, value, source(name).strip("*")] for what, value, name in found]
    return _lines(["what", "measured", "report"], rows)


def agents() -> str:
    """Thousands of agents in one kernel."""
    jax = "JAX vmap of scan, microseconds"
    rows = [
        [
            row["workload"],
            f"{row['agents']:,}",
            f"{row['microseconds a step of all']:.1f} µs",
            f"{row['loop alone, microseconds']:.1f} µs",
            f"{row[jax]:.1f} µs" if row.get(jax) else "",
        ]
        for row in report("agents-cuda")["results"]["rows"]
    ]
    return table(
        "agents-cuda", ["network", "agents", "a step of all", "the loop alone", "JAX `vmap` of `scan`"], rows
    )


def river() -> str:
    """`hamlearn run` and River's linear models on River's data."""
    rows = []
    for found in report("river")["results"]["data"]:
        linear = [value["score"] for key, value in found.items() if key.startswith("river linear")]
        best = max(linear) if found["metric"] == "Accuracy" else min(linear)
        scores = [f"{score:.3f}" for score in (found["hamlearn"], found["last"], best)]
        rows.append([f"{found['data']}, {found['metric']}", *scores])
    return table("river", ["data", "hamlearn", "last value or class", "River linear"], rows)


def braintrace() -> str:
    """Credit forward in time, beside another library."""
    rows = []
    for found in report("credit-braintrace")["results"]["rows"].values():
        version = found.get("versions", {}).get("braintrace", "")
        name = found["name"].replace("braintrace", f"braintrace {version}").replace("D_RTRL", "D-RTRL")
        rows.append([name, f"{found['microseconds']:.1f} µs", f"{found['score']:.4f}"])
    return table("credit-braintrace", ["Hénon series, 64 units, one lane", "a step", "NMSE"], rows)


def long_memory() -> str:
    """Memory, time and error of the gradient over the deepest chain."""
    found = report("memory-cpu")["rows"]
    deepest = max(row["depth"] for row in found)
    rows = [
        [
            row["method"],
            f"{row['peak_bytes'] / 1e6:.1f} MB",
            f"{row['seconds']:.1f} s",
            f"{row['gradient_error']:.0e}",
        ]
        for row in found
        if row["depth"] == deepest
    ]
    return table("memory-cpu", [f"{deepest:,} steps", "peak memory", "time", "error of the gradient"], rows)


def rates() -> str:
    """Scores of a small network at several learning rates."""
    found = [data for data in report("defaults")["results"]["data"] if data["data"] in RATED]
    rows = []
    for rate in found[0]["grid"]:
        scores = [data["grid"][rate] for data in found]
        bests = [max(data["grid"].values()) for data in found]
        marked = [
            f"**{score:.3f}**" if score == best else f"{score:.3f}"
            for score, best in zip(scores, bests, strict=True)
        ]
        rows.append([rate, *marked])
    return table("defaults", ["lr", *RATED], rows)


RATED = ("Phishing", "Bananas", "ImageSegments")


def local_on_a_gpu() -> str:
    """A tick of local layers: kernels, the whole engine, and backpropagation in one CUDA graph."""
    rows = []
    for row in report("local-cuda")["results"]["rows"]:
        # Older reports have rows of batches and of weights in bfloat16, which kernels do not take any more.
        if row.get("weights", "float32") != "float32" or row.get("batch", 1) > 1:
            continue
        took, share = row["microseconds"], row["share of copy bandwidth"]
        ticks = [
            f"{took[f'{way}, kernel']:.0f} / {took[f'{way}, engine']:.0f}" for way in ("unaligned", "aligned")
        ]
        rows.append(
            [
                f"{row['depth']:,} of {row['width']:,}" + (", residual" if row["residual"] else ""),
                f"{took['BackPropagation, CUDA graph']:,.0f}",
                f"{took['unaligned, eager']:,.0f}",
                *ticks,
                f"{share['unaligned']:.0%} / {share['aligned']:.0%}",
            ]
        )
    head = ["layers, µs a tick", "BackPropagation", "eager", "unaligned, kernel / engine", "aligned"]
    return table("local-cuda", [*head, "share of copy bandwidth"], rows)


TABLES: dict[str, Callable[[], str]] = {
    "step": step,
    "compiled": compiled,
    "compiled on a GPU": lambda: compiled("stream-cuda"),
    "fair": fair,
    "estimators": estimators,
    "forecasts": forecasts,
    "sources": sources,
    "live": live,
    "memory": memory,
    "memory on a GPU": lambda: memory("memory-cuda"),
    "agents": agents,
    "others": others,
    "river": river,
    "braintrace": braintrace,
    "long memory": long_memory,
    "rates": rates,
    "local on a GPU": local_on_a_gpu,
}


@cache
def figures() -> dict[str, str]:
    """Figures that sentences of other pages ask for, by name."""
    found = {
        "echo over BPTT": f"{report('echo')['results']['ratios']['echo']:.2f}",
        "endless memory": f"{report('endless')['results']['ratio']:.4f}",
        "pipeline": f"{report('pipeline-free-cores')['results']['two processes / one']:.2f}",
    }
    for device, name in (("", "stream-single"), (" on a GPU", "stream-cuda")):
        for cell in report(name)["results"]["single"]["cells"]:
            took, label = cell["microseconds"], cell["workload"]
            found[f"scan{device}: {label}"] = f"{took['hl_scan']:.2f}"
            found[f"SGD{device}: {label}"] = f"{took['sgd_eager']:.0f}"
            found[f"run{device}: {label}"] = f"{took['hl_compiled']:.2f}"
            found[f"scan over jax{device}: {label}"] = f"{took['jax_scan'] / took['hl_scan']:.1f}"
            found[f"run over jax{device}: {label}"] = f"{took['jax_scan'] / took['hl_compiled']:.1f}"
    for cell in report("step")["results"]["cells"]:
        for role in ("output", "state"):
            found[f"step over SGD: {cell['model']}, {cell['scenario']}, {role}"] = f"{cell['ratios'][role]:.2f}"
    for name, cell in report("stream-sources")["results"]["sources"]["cells"].items():
        found[f"rows a second: {name}"] = f"{cell['learned']:,}"
    for cell in report("streams")["results"]["streams"]:
        scores = cell["scores"]
        found[f"score: {cell['stream']}"] = f"{scores.get('accuracy', scores.get('R2')):.3f}"
        found[f"peer: {cell['stream']}"] = f"{PEERS[cell['stream']]:.3f}"
    return found


SHOWN = re.compile(r"(\d[\d.,]*)(?: ×)?(?: as fast)? <!-- ([^>]+) -->")


def stale(text: str) -> dict[str, tuple[str, str | None]]:
    """Figures that differ from the newest reports; a comment names each, as in `0.88 <!-- step over SGD -->`.

    Each comes with the figure of the reports, or `None` if they have none of that name.
    """
    shown = {name: figure for figure, name in SHOWN.findall(text)}
    return {name: (figure, figures().get(name)) for name, figure in shown.items() if figures().get(name) != figure}
