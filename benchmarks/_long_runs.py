"""Very deep and very long: trained in processes of their own, whose peak resident memory is read at the end."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks import ROOT
from hamlearn.errors import ConfigError
from hamlearn.reversible import AntisymmetricLinear, MidpointRNN, MidpointSequential

WIDTH = 64
VOCABULARY = 16
TAU = 0.1


def measure_long_runs(quick: bool) -> list[dict[str, Any]]:
    """One training step of 10,000 layers, and over 1,000,000 tokens: loss, time, peak resident memory."""
    runs = [("layers", 200 if quick else 10_000), ("tokens", 500 if quick else 1_000_000)]
    found = []
    for what, size in runs:
        command = [sys.executable, "-m", "benchmarks._long_runs", what, str(size)]
        done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
        found.append(json.loads(done.stdout.splitlines()[-1]))
    return found


class Tokens(nn.Module):
    """A field of 64 neurons driven by the embedding of a token."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        # Linear, as in state-space models: costates are then carried without growth over any number of tokens,
        # where the exact gradient of a chaotic field overflows.
        self.core = AntisymmetricLinear(WIDTH, inputs=WIDTH, activation=nn.Identity(), limit=1 / TAU)
        nn.init.normal_(self.embedding.weight, std=0.1)

    def forward(self, u: tuple[Tensor, Tensor], h: Tensor) -> Tensor:
        """The rate of change of h."""
        return self.core(self.embedding(u[0]), h)


class TokenLoss(nn.Module):
    """Cross-entropy of the next token, so that one number is kept per token."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, u: tuple[Tensor, Tensor], h: Tensor) -> Tensor:
        """The loss at one token."""
        return functional.cross_entropy(self.linear(h), u[1])


def _layers(size: int) -> tuple[nn.Module, Any]:
    net = MidpointSequential(*(AntisymmetricLinear(WIDTH) for _ in range(size)), tau=0.01)
    h, target = torch.randn(32, WIDTH), torch.randn(32, WIDTH)
    return net, lambda: (net(h) - target).square().mean()


def _tokens(size: int) -> tuple[nn.Module, Any]:
    # The sum of the last two tokens, modulo the vocabulary, is the target: memory is needed to predict it.
    tokens = torch.randint(VOCABULARY, (size + 1, 1))
    u = (tokens[1:], (tokens[1:] + tokens[:-1]) % VOCABULARY)
    # Driven by noise, a field without damping wanders off as the root of the time: a wide range, held in float64.
    net = MidpointRNN(Tokens(), TAU, TokenLoss(), bound=2.0**14, state_dtype=torch.float64)
    h = torch.zeros(1, WIDTH)
    return net, lambda: net(u, h)[0].mean()


def peak_resident_bytes() -> int:
    """The most memory that this process has had in RAM so far."""
    # Not getrusage: its high-water mark survives exec, so a child starts with that of its parent.
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise ConfigError("/proc/self/status has no VmHWM line: the long runs are measured on Linux alone.")


def main(what: str, size: int) -> None:
    """Take one training step and print what it took as a line of JSON."""
    torch.manual_seed(0)
    net, loss_of = {"layers": _layers, "tokens": _tokens}[what](size)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    start = time.perf_counter()
    loss = loss_of()
    loss.backward()
    for p in net.parameters():
        nn.utils.clip_grad_norm_([p], 0.1)
    optimizer.step()
    seconds = time.perf_counter() - start
    with torch.no_grad():
        after = loss_of()
    report = {
        "what": what,
        "size": size,
        "weights": sum(p.numel() for p in net.parameters()),
        "loss_before": loss.item(),
        "loss_after": after.item(),
        "seconds": seconds,
        "peak_resident_bytes": peak_resident_bytes(),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
