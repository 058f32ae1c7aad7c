"""Right answers along the stream, by how late the labels are."""

import late_labels
import torch
from matplotlib import pyplot as plt

figure, ax = plt.subplots()
for by, right in late_labels.main().items():
    ax.plot(torch.tensor(right).float().unfold(0, 50, 1).mean(1), label=f"{by} samples late")
ax.axvline(1000, color="grey", linestyle=":")
ax.set(xlabel="sample", ylabel="right answers, of 50", ylim=(0, 1.05), xlim=(0, 1950))
ax.legend(loc="lower right")
figure.savefig("late_labels.svg")
