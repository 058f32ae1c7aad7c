"""Right answers over the episodes, by four kinds of credit."""

from matplotlib import pyplot as plt

import hamlearn as hl
import recurrent

figure, ax = plt.subplots()
for credit in (hl.Cleared(), hl.Forward(), hl.Echo(every=recurrent.DELAY + 2), hl.Sensitivity()):
    ax.plot(recurrent.answers(credit).unfold(0, 30, 1).mean(1), label=type(credit).__name__)
ax.axhline(0.25, color="grey", linestyle=":", label="chance")
ax.set(xlabel="episode", ylabel="right answers", ylim=(0, 1.05))
ax.legend(loc="center right")
figure.savefig("recurrent.svg")
