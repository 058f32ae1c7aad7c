"""Learn from a CSV file with missing cells and uneven times, stop, and continue from there.

python examples/stream_csv.py
"""

import math
import random
import tempfile
from pathlib import Path

import torch

import hamlearn as hl
from hamlearn import record, streams


def write_table(path: Path, rows: int = 600) -> None:
    """A tide gauge: level and wind at uneven hours, some cells lost, the level an hour on as the target."""
    draw = random.Random(0)
    with path.open("w") as file:
        file.write("hour,level,wind,next\n")
        t = 0.0
        for _ in range(rows):
            t += draw.choice((0.5, 1.0, 1.0, 2.0))
            wind = "" if draw.random() < 0.1 else f"{draw.gauss(0, 1):.3f}"
            target = "" if draw.random() < 0.2 else f"{math.sin((t + 1) / 2):.4f}"
            file.write(f"{t},{math.sin(t / 2):.4f},{wind},{target}\n")


def table(path: Path) -> streams.Stream:
    return streams.csv(path, u=["level", "wind"], target="next", time="hour", missing="hold")


def learner() -> hl.Learner:
    torch.manual_seed(0)
    network = hl.Network.recurrent(torch.nn.GRUCell(2, 12), torch.nn.Linear(12, 1))
    hyper = hl.Hyper(eta=0.3, beta=0.01)
    return hl.Learner(network, torch.nn.functional.mse_loss, hyper, credit=hl.Forward())


def main(folder: Path) -> list[dict]:
    """Mean losses along the second half, as recorded."""
    path = folder / "tide.csv"
    write_table(path)
    first = learner()
    for _ in first.run(table(path), max_steps=300):
        pass
    first.save(folder / "half.safetensors")

    second = learner()
    second.load(folder / "half.safetensors")
    memory = record.Memory(fields=("step", "t", "loss"))
    with record.Recorder(second, memory) as recorder:
        for _ in recorder(second.run(table(path), resume=True)):
            pass
    parts = [memory.rows[k : k + 50] for k in range(0, len(memory.rows), 50)]
    # A row whose target is missing has no loss.
    losses = [[row["loss"] for row in part if row["loss"] is not None] for part in parts]
    means = [{"t": part[-1]["t"], "loss": sum(own) / len(own)} for part, own in zip(parts, losses, strict=True)]
    for row in means:
        print(f"t = {row['t']:6.1f} h   mean loss {row['loss']:.4f}")
    print(f"report: {record.html(memory.rows, folder / 'tide.html', title='Tide, one hour ahead')}")
    return means


if __name__ == "__main__":
    main(Path(tempfile.mkdtemp()))
