"""Five minutes of the pump as the agent sees them, faster than they pass: labels come two seconds late."""

import random
import sys
from pathlib import Path

import torch
from matplotlib import pyplot as plt

import hamlearn as hl

sys.path.insert(0, str(Path(sys.path[0], "agent")))
import sensor

RATE, DELAY, SECONDS = 10, 2, 300


def readings():
    """What the pump publishes."""
    draw = random.Random(0)
    for k in range(RATE * SECONDS):
        u, pressure = sensor.reading(k / RATE, draw)
        yield hl.Sample(torch.tensor(u), torch.tensor([pressure]))


torch.manual_seed(0)
module = torch.nn.Sequential(torch.nn.Linear(3, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
learner = hl.Learner(
    hl.Network.feedforward(module), torch.nn.functional.mse_loss, hl.Hyper.from_adam(lr=0.003), late=1000
)
stream = hl.streams.standardize(hl.streams.delayed(readings(), RATE * DELAY))
pairs = [(r.y.item(), r.sample.target.item()) for r in learner.run(stream) if r.loss is not None]

y, pressure = torch.tensor(pairs).T
figure, axes = plt.subplots(1, 2, sharey=True, figsize=(6.4, 3.2), layout="constrained")
for ax, begin in zip(axes, (0, SECONDS - 40), strict=True):
    part = slice(begin * RATE, (begin + 38) * RATE)
    seconds = [begin + k / RATE for k in range(38 * RATE)]
    ax.plot(seconds, pressure[part], color="grey", label="pressure")
    ax.plot(seconds, y[part], linewidth=1.2, label="prediction")
    ax.set(xlabel="seconds")
figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=2)
figure.savefig("agent.svg")
