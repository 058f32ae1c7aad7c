"""Areas under the ROC curve of two detectors of anomalies."""

import drift_anomaly
from matplotlib import pyplot as plt

figure, ax = plt.subplots()
bars = ax.bar(["autoencoder's error", "half-space trees"], drift_anomaly.scores(), width=0.5)
ax.bar_label(bars, fmt="%.3f", padding=3)
ax.axhline(0.5, color="grey", linestyle=":")
ax.set(ylabel="area under the ROC curve", ylim=(0, 1.05))
figure.savefig("drift_anomaly.svg")
