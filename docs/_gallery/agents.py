"""The error of each of a hundred agents, at first and after a thousand steps."""

from matplotlib import pyplot as plt

import agents

first, last = agents.main()
figure, ax = plt.subplots(figsize=(6.4, 3.8))
ax.loglog(first, last, "o", markersize=5, alpha=0.8, label="one agent each")
ends = float(first.nan_to_num(0.1).min()), float(first.nan_to_num(0.1).max())
ax.loglog(ends, ends, color="grey", linestyle=":", label="no progress")
ax.set(xlabel="error in the first 100 steps", ylabel="error after 1,000 steps")
ax.legend()
figure.savefig("agents.svg")
