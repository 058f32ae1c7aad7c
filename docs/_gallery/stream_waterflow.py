"""The error of the last 200 forecasts along the series, and that of the last value."""

import itertools
from pathlib import Path

import stream_waterflow
import torch
from matplotlib import pyplot as plt
from river import datasets

from hamlearn import record

stream_waterflow.main(Path("run"))
rows = [row for row in record.read("run/record.jsonl") if row.get("MAE (window)") is not None]
values = [y for _, y in datasets.WaterFlow()]
last = torch.tensor([abs(b - a) for a, b in itertools.pairwise(values)]).unfold(0, 200, 1).mean(1)

figure, ax = plt.subplots()
ax.plot(range(199, 199 + len(last)), last, color="grey", label="the last value")
ax.plot([row["step"] for row in rows], [row["MAE (window)"] for row in rows], label="the learner")
ax.set(xlabel="hour", ylabel="mean error of the last 200", ylim=(0, None), xlim=(200, None))
ax.legend()
figure.savefig("stream_waterflow.svg")
