"""What the table holds: orders by price and distance, and what became of them."""

import csv
from pathlib import Path

import orders
from matplotlib import pyplot as plt

orders.write_table(Path("orders.csv"))
with Path("orders.csv").open() as file:
    rows = [row for row in csv.DictReader(file) if row["distance"]][:800]
figure, axes = plt.subplots(1, 2, sharey=True, figsize=(6.4, 3.4))
for ax, express, title in zip(axes, ("false", "true"), ("sent by mail", "sent by express"), strict=True):
    for outcome, marker in (("kept", "o"), ("returned", "^")):
        chosen = [row for row in rows if (row["outcome"], row["express"]) == (outcome, express)]
        price, distance = ([float(row[name]) for row in chosen] for name in ("price", "distance"))
        ax.plot(distance, price, marker, markersize=3, alpha=0.7, label=outcome)
    ax.set(title=title, xlabel="distance", xlim=(0, 40), ylim=(0, 100))
axes[0].set(ylabel="price")
axes[1].legend()
figure.savefig("orders.svg")
