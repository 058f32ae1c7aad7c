"""The losses that the service answered with, request by request."""

import torch
from matplotlib import pyplot as plt

import serve

losses = torch.tensor(serve.main())
figure, ax = plt.subplots(figsize=(6.4, 3))
ax.semilogy(losses, ".", markersize=3, alpha=0.6)
ax.semilogy(range(19, len(losses)), losses.unfold(0, 20, 1).mean(1), color="C0")
ax.set(xlabel="request", ylabel="loss in the answer")
figure.savefig("serve.svg")
