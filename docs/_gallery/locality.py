"""Digits recognised while learning, by each method."""

import locality
import torch
from matplotlib import pyplot as plt

figure, ax = plt.subplots()
for name, right in locality.main().items():
    ax.plot(torch.tensor(right).float().unfold(0, 100, 1).mean(1), label=name)
ax.axhline(0.1, color="grey", linestyle=":", label="chance")
ax.set(xlabel="digit", ylabel="right answers, of 100", ylim=(0, 1))
ax.legend(ncols=2)
figure.savefig("locality.svg")
