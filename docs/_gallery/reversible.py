"""The two spirals, classified by the network of 500 layers, and the memory of a step."""

import torch
from matplotlib import pyplot as plt

import reversible

model, mib = reversible.main()
torch.manual_seed(1)
x, label = reversible.spirals(400)
axis = torch.linspace(-2, 2, 80)
grid = torch.cartesian_prod(axis, axis)
with torch.no_grad():
    share = model(grid).softmax(1)[:, 1].reshape(80, 80).T

figure, (left, right) = plt.subplots(1, 2, figsize=(6.4, 3.2))
left.contourf(axis, axis, share, levels=[0, 0.5, 1], colors=["C0", "C1"], alpha=0.25)
for which, color in enumerate(("C0", "C1")):
    left.plot(*x[label == which].T, ".", color=color, markersize=4)
left.set(title="after 17 steps", xlim=(-2, 2), ylim=(-2, 2), aspect="equal")
left.grid(visible=False)
bars = right.bar(list(mib), list(mib.values()), color=["C3", "C2"], width=0.6)
right.bar_label(bars, fmt="%.1f")
right.set(title="memory of a step in MiB")
figure.savefig("reversible.svg")
