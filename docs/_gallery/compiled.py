"""The loss by both engines, and what a step costs."""

import torch
from matplotlib import pyplot as plt

import compiled

curves, took = compiled.main()
figure, (left, right) = plt.subplots(1, 2, figsize=(6.4, 3.4), width_ratios=(3, 2), layout="constrained")
for (engine, losses), width in zip(curves.items(), (4, 1.4), strict=True):
    smooth = torch.stack(losses[:2000]).unfold(0, 50, 1).mean(1)
    left.semilogy(smooth, label=engine, linewidth=width)
left.set(xlabel="step", ylabel="loss, mean of 50 steps")
figure.legend(*left.get_legend_handles_labels(), loc="outside upper center", ncols=2)
bars = right.barh(list(took), list(took.values()), color=["C0", "C1", "C2"])
right.bar_label(bars, fmt="%.0f", padding=3)
right.set(xlabel="µs per step", xlim=(0, 1.2 * max(took.values())))
right.invert_yaxis()
figure.savefig("compiled.svg")
