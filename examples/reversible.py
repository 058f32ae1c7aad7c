"""A network of 500 layers trained in the memory of one.

A network classifies two spirals. Ordinary backpropagation through the same network gives the same gradients, and
keeps every layer for it.
"""

import math

import torch
from torch import Tensor, nn

from hamlearn.reversible import AntisymmetricLinear, Midpoint

LAYERS = 500


def spirals(n: int) -> tuple[Tensor, Tensor]:
    label = torch.arange(n) % 2
    angle = 3 * math.pi * torch.rand(n).sqrt()
    turned = angle + math.pi * label
    return torch.stack([angle * turned.cos(), angle * turned.sin()], dim=1) / 5, label


def build(memory: str) -> nn.Module:
    torch.manual_seed(0)
    chain = Midpoint(AntisymmetricLinear(32), steps=LAYERS, tau=0.02, memory=memory)
    return nn.Sequential(nn.Linear(2, 32), chain, nn.Linear(32, 2))


def peak_mib(model: nn.Module, x: Tensor, label: Tensor) -> float:
    """The most memory that tensors hold at once during a forward and a backward run."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        nn.functional.cross_entropy(model(x), label).backward()
    held = peak = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak / 2**20


def main() -> tuple[nn.Module, dict[str, float]]:
    """The trained network, and the memory that a training step took by either way."""
    torch.manual_seed(1)
    x, label = spirals(400)
    gradients, mib = {}, {}
    for memory in ("stored", "reversible"):
        model = build(memory)
        mib[memory] = peak_mib(model, x, label)
        print(f"{LAYERS} layers, {memory:>10}: {mib[memory]:7.2f} MiB for a training step")
        gradients[memory] = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    off = (gradients["stored"] - gradients["reversible"]).norm() / gradients["stored"].norm()
    print(f"gradients differ by {off:.0e} of their size (float32)")

    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for step in range(17):
        y = model(x)
        loss = nn.functional.cross_entropy(y, label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 8 == 0:
            right = (y.argmax(1) == label).float().mean()
            print(f"step {step:2}: loss {loss:.3f}, {right:.0%} right")
    return model, mib


if __name__ == "__main__":
    main()
