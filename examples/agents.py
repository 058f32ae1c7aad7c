"""A hundred sensors, each with a learner of its own that predicts its next value; one of them breaks."""

import sys
import tempfile
import warnings
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

import hamlearn as hl


def make(hyper: hl.Hyper) -> hl.Learner:
    network = hl.Network.recurrent(nn.RNNCell(1, 8), readout=nn.Linear(8, 1))
    return hl.Learner(network, nn.functional.mse_loss, hyper)


def sensor(number: int, steps: int) -> hl.streams.Stream:
    """A wave of its own frequency; sensors are switched off at different times."""
    generator = torch.Generator().manual_seed(number)
    time = torch.arange(steps - 3 * number + 1)[:, None] * (0.05 + 0.002 * number)
    values = time.sin() + 0.05 * torch.randn(time.shape, generator=generator)
    if number == 7:
        values[steps // 2] = float("nan")
    return hl.streams.from_dataset(TensorDataset(values[:-1], values[1:]))


def main(sensors: int = 100, steps: int = 1_500) -> tuple[torch.Tensor, torch.Tensor]:
    """Each agent's mean loss at first and later; for those that were frozen, not a number."""

    def agents() -> hl.Population:
        streams = [sensor(number, steps) for number in range(sensors)]
        return hl.Population(make, [hl.Hyper.from_sgd(lr=0.03)], seeds=range(sensors), streams=streams)

    population, path = agents(), Path(tempfile.mkdtemp(), "agents.safetensors")
    early, late = [], []
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", RuntimeWarning)
        for step, report in enumerate(population.run(), start=1):
            if step <= 100:
                early.append(report.loss)
            elif 1_000 < step <= 1_100:
                late.append(report.loss)
            if step == 1_000:
                population.save(path)
    print(f"warned: {told[-1].message}"[:100])
    first, last = (torch.stack(losses).nanmean(0) for losses in (early, late))
    better = int((last < first / 2).sum())
    print(f"{better} of {sensors} agents halved their error; member 7 stopped at sample {population.positions[7]}")
    print(f"{sum(report.took)} agents took part in the last step")

    # From the checkpoint all continue, the broken one too, which is frozen again.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        resumed = agents()
        resumed.load(path)
        for report in resumed.run(resume=True):  # noqa: B007
            pass
    one, other = (agents.member(3).network.state.weight_hh for agents in (population, resumed))
    print(
        f"resumed after 1,000 steps, agent 3 ends with the same weights to within {(one - other).abs().max():.0e}"
    )
    return first, last


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
