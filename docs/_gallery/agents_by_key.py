"""The loss of each agent, in the style of the process that owns it."""

import tempfile

import agents_by_key
import torch
from matplotlib import pyplot as plt

torch.set_num_threads(1)
losses = {key: [] for key in agents_by_key.KEYS}
with tempfile.TemporaryDirectory() as folder:
    agents = agents_by_key.Agents(folder)
    for key, sample in agents_by_key.events():
        losses[key].append(agents.take(key, sample))

figure, ax = plt.subplots(figsize=(6.4, 3))
for number, (key, values) in enumerate(losses.items()):
    place = agents_by_key.owner(key, 2)
    smooth = torch.tensor(values).unfold(0, 5, 1).mean(1)
    ax.semilogy(smooth, color=f"C{number}", linestyle=("-", "--")[place], label=f"{key}, process {place}")
ax.set(xlabel="events of the agent", ylabel="loss, mean of five")
ax.legend(fontsize=8, ncols=2)
figure.savefig("agents_by_key.svg")
