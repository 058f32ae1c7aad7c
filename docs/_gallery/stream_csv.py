"""Mean loss along the second half of the file, after the restart."""

from pathlib import Path

import stream_csv
from matplotlib import pyplot as plt

rows = stream_csv.main(Path.cwd())
figure, ax = plt.subplots(figsize=(6.4, 3))
parts = [rows[k : k + 50] for k in range(0, len(rows), 50)]
means = [sum(row["loss"] for row in part) / len(part) for part in parts]
ax.plot([part[-1]["t"] for part in parts], means, marker="o")
ax.set(xlabel="hours", ylabel="loss, mean of 50 rows", ylim=(0, None))
figure.savefig("stream_csv.svg")
