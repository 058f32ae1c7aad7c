"""The memory benchmark as a table and as a figure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table


def show(report: dict[str, Any]) -> None:
    """Print the table."""
    console = Console()
    table = Table(title=f"Backpropagation through N midpoint steps ({report['machine']['name']})")
    for column in ("N", "method", "peak memory [MiB]", "time [s]", "time / plain", "gradient error"):
        table.add_column(column, justify="left" if column == "method" else "right")
    plain = {row["depth"]: row["seconds"] for row in report["rows"] if row["method"] == "plain"}
    for row in report["rows"]:
        table.add_row(
            str(row["depth"]),
            row["method"],
            f"{row['peak_bytes'] / 2**20:.1f}",
            f"{row['seconds']:.3f}",
            f"{row['seconds'] / plain[row['depth']]:.2f}",
            f"{row['gradient_error']:.1e}",
            end_section=row["method"] == report["rows"][-1]["method"],
        )
    console.print(table)
    for name, value in report["figures"].items():
        console.print(f"{name}: {value:.3f}")
    for long in (*report["long_runs"], *report["resident"]):
        console.print(long)


def draw(report: dict[str, Any], path: Path) -> None:
    """Memory and time against depth, one line per method."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9.5, 3.8), layout="constrained")
    names = list(dict.fromkeys(row["method"] for row in report["rows"]))
    plain = {row["depth"]: row["seconds"] for row in report["rows"] if row["method"] == "plain"}
    for name, marker in zip(names, "osD^v", strict=False):
        rows = [row for row in report["rows"] if row["method"] == name]
        depth = [row["depth"] for row in rows]
        style: dict[str, Any] = {"marker": marker, "label": name, "lw": 2.5 if name == "reversible" else 1.2}
        style["ls"] = "--" if "floats" in name else "-"
        left.loglog(depth, [row["peak_bytes"] / 2**20 for row in rows], **style)
        right.semilogx(depth, [row["seconds"] / plain[row["depth"]] for row in rows], **style)
    left.set(xlabel="steps N", ylabel="peak memory [MiB]", title="Memory of one forward and backward run")
    right.set(xlabel="steps N", ylabel="time / plain", title="Time", ylim=(0, None))
    right.axhline(4 / 3, color="grey", ls=":", lw=1)
    right.legend(right.get_lines()[-1:], ["4/3: one more evaluation of the field"], fontsize=8, loc="lower right")
    left.legend(fontsize=8)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
