"""Right answers over the episodes, with credit for one step and with credit that goes forward."""

import recall
from matplotlib import pyplot as plt

import hamlearn as hl

figure, ax = plt.subplots()
for credit in (hl.Cleared(), hl.Sensitivity()):
    ax.plot(recall.answers(credit).unfold(0, 30, 1).mean(1), label=type(credit).__name__)
ax.axhline(0.25, color="grey", linestyle=":", label="chance")
ax.set(xlabel="episode", ylabel="right answers", ylim=(0, 1.05))
ax.legend(loc="center right")
figure.savefig("recall.svg")
