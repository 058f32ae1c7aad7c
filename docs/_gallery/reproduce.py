"""Loss of each epoch, by SGD and by Hamiltonian Learning."""

import csv
from pathlib import Path

import reproduce
from matplotlib import pyplot as plt

reproduce.main()
with Path("out/corner/curves.csv").open() as file:
    rows = [row for row in csv.DictReader(file) if row["dtype"] == "float32"]
figure, axes = plt.subplots(1, 2, sharey=True, figsize=(6.4, 3.2), layout="constrained")
for ax, model in zip(axes, ("Linear", "MLP"), strict=True):
    for how in dict.fromkeys(row["implementation"] for row in rows):
        chosen = [row for row in rows if (row["model"], row["implementation"]) == (model, how)]
        epochs, losses = [int(row["epoch"]) for row in chosen], [float(row["loss"]) for row in chosen]
        sgd = how.lower() == "sgd"
        look = {"marker": "o", "markersize": 11, "fillstyle": "none", "color": "grey"} if sgd else {"marker": "."}
        ax.plot(epochs, losses, label="torch.optim.SGD" if sgd else f"as {how} net", **look)
    ax.set(title=model, xlabel="epoch")
axes[0].set(ylabel="mean loss")
figure.legend(*axes[1].get_legend_handles_labels(), loc="outside upper center", ncols=3)
figure.savefig("reproduce.svg")
