"""Right answers over the episodes, by four kinds of credit."""

from matplotlib import pyplot as plt

import recurrent

figure, ax = plt.subplots(layout="constrained")
for credit, right in recurrent.main().items():
    ax.plot(right.unfold(0, 30, 1).mean(1), label=credit)
ax.axhline(0.25, color="grey", linestyle=":", label="chance")
ax.set(xlabel="episode", ylabel="right answers", ylim=(0, 1.05))
figure.legend(loc="outside upper center", ncols=5)
figure.savefig("recurrent.svg")
