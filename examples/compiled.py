"""One recurrent network on an endless signal, by both engines; then a sweep of 32 learners in one loop."""

import sys
import time

import torch
from torch import nn

import hamlearn as hl


def make(hyper: hl.Hyper) -> hl.Learner:
    network = hl.Network.recurrent(nn.GRUCell(1, 16), readout=nn.Linear(16, 1))
    return hl.Learner(network, nn.functional.mse_loss, hyper, order="sequential", credit=hl.Cleared())


def main(steps: int = 20_000) -> tuple[dict[str, list[torch.Tensor]], dict[str, float]]:
    """Losses by either engine, and microseconds per step."""
    series = torch.cat([sample.u for sample in hl.streams.take(hl.streams.signals.mackey_glass(), steps + 6)])
    series = series.view(-1, 1)
    stream = hl.streams.from_dataset(torch.utils.data.TensorDataset(series[:-6], series[6:]))

    curves, took = {}, {}
    for engine, count in (("eager", steps // 10), ("compiled", steps)):
        torch.manual_seed(0)
        learner = make(hl.Hyper.from_sgd(lr=0.02, momentum=0.5))
        curves[engine] = [report.loss for report in learner.run(stream, 10, engine)]
        start = time.perf_counter()
        curves[engine] += [report.loss for report in learner.run(stream, count - 10, engine, resume=True)]
        took[engine] = 1e6 * (time.perf_counter() - start) / (count - 10)
        print(f"{engine:>8}: {took[engine]:6.1f} µs per step")
    gap = max(abs(a - b) for a, b in zip(curves["eager"], curves["compiled"], strict=False))
    print(f"The losses differ by {gap:.0e} at most.")

    rates = [0.001 * 2**k for k in range(8)]
    population = hl.Population(make, [hl.Hyper.from_sgd(lr=rate, momentum=0.5) for rate in rates], seeds=range(4))
    for _ in population.run(stream, 10):
        pass
    start = time.perf_counter()
    total = sum(report.loss for report in population.run(stream))
    each = took[f"{len(population)} learners"] = 1e6 * (time.perf_counter() - start) / len(series[6:])
    best = population.members[int(total.argmin())]
    print(f"{len(population)} members: {each:.1f} µs per step; the best learned with rate {best.hyper.beta:g}")
    return curves, took


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
