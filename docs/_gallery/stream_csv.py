"""Mean loss along the second half of the file, after the restart."""

from pathlib import Path

import stream_csv
from matplotlib import pyplot as plt

rows = stream_csv.main(Path.cwd())
figure, ax = plt.subplots(figsize=(6.4, 3))
ax.plot([row["t"] for row in rows], [row["loss"] for row in rows], marker="o")
ax.set(xlabel="hours", ylabel="loss, mean of 50 rows", ylim=(0, None))
figure.savefig("stream_csv.svg")
