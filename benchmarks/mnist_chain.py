"""One pass over MNIST by a chain of layers, a new image at every tick: BackPropagation and aligned local layers.

Batch 1, cross-entropy, no momentum, each way at every rate of a small grid: accuracy while learning (an answer is
given before it is learned from), that of the last 10,000 images, accuracy on the test images, and samples per
second. With `--half N` a rate falls as 1/(1 + t/N), with `--warm N` it rises over the first N images. On a GPU,
BackPropagation is one CUDA graph per step with fused SGD, and local layers tick in fused kernels; elsewhere both
run eagerly.

`python -m benchmarks.mnist_chain --data DIR --depth 32 --residual --device cuda`
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from benchmarks import _report
from benchmarks._classification import Data, mnist_data
from benchmarks._local_cuda import graphed
from hamlearn.hyper import Hyper
from hamlearn.local import LocalLearner, Residual
from hamlearn.sample import Sample

WIDTH, LAST, CHUNK = 128, 10_000, 2_048
RATES = (0.001, 0.002, 0.0025, 0.003, 0.005)
ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh}
cross_entropy = nn.functional.cross_entropy


def chain(depth: int, residual: bool, activation: str, seed: int = 0) -> nn.Sequential:
    """784 inputs, layers of 128, 10 outputs, Glorot's start; residual branches are scaled by 0.1."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise([784, *[WIDTH] * (depth - 1), 10]):
        linear = nn.Linear(inputs, outputs)
        nn.init.xavier_normal_(linear.weight)
        nn.init.zeros_(linear.bias)
        layer: nn.Module = nn.Sequential(linear, ACTIVATIONS[activation]())
        if len(layers) == depth - 1:
            layer = linear
        elif layers and residual:
            layer = Residual(layer)
        layers.append(layer)
    return nn.Sequential(*layers)


@dataclass(frozen=True)
class Rate:
    """A learning rate over time.

    Attributes:
        top: The rate as it is given.
        half: After so many images it has fallen to a half; 0: it does not fall.
        warm: Over so many images it rises; 0: it is there at once.
    """

    top: float
    half: float = 0.0
    warm: float = 0.0

    def __call__(self, t: float) -> float:
        """The rate at image t."""
        risen = min(1.0, (t + 20) / self.warm) if self.warm else 1.0
        return self.top * risen / (1 + (t / self.half if self.half else 0.0))

    @property
    def beta(self) -> float | Rate:
        """The same as β of a learner whose τ is 1."""
        return self if self.half or self.warm else self.top


def backprop(module: nn.Module, u: Tensor, target: Tensor, rate: Rate, groups: int | None = None) -> Tensor:
    """Whether each answer was right, by `torch.optim.SGD`."""
    on_gpu = u.is_cuda
    rates = torch.tensor([rate(k) for k in range(len(u) + 1)], device=u.device)
    lr = rates[0].clone()
    optimizer = torch.optim.SGD(module.parameters(), lr=lr, fused=on_gpu)
    place = torch.zeros(1, dtype=torch.long, device=u.device)
    right = torch.zeros(len(u) + 1, dtype=torch.bool, device=u.device)

    def step() -> None:
        lr.copy_(rates.index_select(0, place)[0])
        now = target.index_select(0, place)
        y = module(u.index_select(0, place))
        optimizer.zero_grad(set_to_none=False)
        cross_entropy(y, now).backward()
        optimizer.step()
        right.index_copy_(0, place, y.argmax(-1) == now)
        place.add_(1)

    if on_gpu:
        # Recording takes some steps of its own.
        before = [weight.detach().clone() for weight in module.parameters()]
        step = graphed(step)  # type: ignore[assignment]
        with torch.no_grad():
            torch._foreach_copy_(list(module.parameters()), before)
        place.zero_()
    for _ in range(len(u)):
        step()
    return right[:-1]


def local(module: nn.Module, u: Tensor, target: Tensor, rate: Rate, groups: int | None = None) -> Tensor:
    """Whether each answer of an aligned learner was right; none that it skipped was."""
    hyper = replace(Hyper.from_sgd(rate.top), beta=rate.beta)
    learner = LocalLearner(module, cross_entropy, hyper, groups=groups, align=True, on_nonfinite="skip")
    stream = [Sample(u[k : k + 1], target[k : k + 1]) for k in range(len(u))]
    given = []
    engine: Any = "compiled" if u.is_cuda else "eager"
    for report in learner.run(stream, engine=engine, chunk=CHUNK):
        if report.sample is not None:
            wrong = torch.full_like(report.sample.target, -1)
            given.append(wrong if report.skipped or report.y is None else report.y.argmax(-1))
    return torch.cat(given) == target


WAYS = {"BackPropagation": backprop, "aligned": local}


def measure(
    data: Data,
    net: tuple[int, bool, str],
    ways: Sequence[str],
    rates: Sequence[Rate],
    seeds: Sequence[int],
    device: str,
    groups: int | None = None,
) -> list[dict[str, Any]]:
    """All ways at all rates, from all starts of the net: its depth, whether it is residual, its activation."""
    u, target, test_u, test = (x.to(device) for x in (data.u, data.target, data.test_u, data.test_target))
    rows = []
    for way in ways:
        for rate, seed in product(rates, seeds):
            module = chain(*net, seed).to(device)
            begin = time.perf_counter()
            right = WAYS[way](module, u, target, rate, groups).double()
            online = right.mean().item()
            seconds = time.perf_counter() - begin
            with torch.no_grad():
                tested = (module(test_u).argmax(-1) == test).double().mean().item()
            row = {"way": way, "rate": rate.top, "seed": seed, "online": online}
            row |= {"last": right[-LAST:].mean().item(), "test": tested}
            rows.append({**row, "samples a second": round(len(u) / seconds)})
            print(rows[-1], flush=True)
    return rows


def main() -> None:
    """Measure, print a table, write a dated report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with the files of MNIST")
    parser.add_argument("--depth", type=int, default=32)
    parser.add_argument("--residual", action="store_true")
    parser.add_argument("--activation", choices=ACTIVATIONS, default="relu")
    parser.add_argument("--rates", type=float, nargs="+", default=RATES)
    parser.add_argument("--half", type=float, default=0.0, help="images after which a rate has fallen to a half")
    parser.add_argument("--warm", type=float, default=0.0, help="images over which a rate rises")
    parser.add_argument("--seeds", type=int, nargs="+", default=(0,))
    parser.add_argument("--ways", choices=WAYS, nargs="+", default=tuple(WAYS))
    parser.add_argument(
        "--groups", type=int, help="of consecutive layers, delays only between them; one per layer"
    )
    parser.add_argument("--name", default="", help="what the report's name ends with")
    parser.add_argument("--count", type=int, help="how many images; all if not given")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    given = parser.parse_args()
    data = mnist_data(given.data)
    data = Data(data.name, data.u[: given.count], data.target[: given.count], data.test_u, data.test_target)
    net = given.depth, given.residual, given.activation
    rates = [Rate(rate, given.half, given.warm) for rate in given.rates]
    rows = measure(data, net, given.ways, rates, given.seeds, given.device, given.groups)
    about = f"{given.depth} {'residual ' if given.residual else ''}layers, {given.activation}, {given.device}"
    about += f", {given.groups} groups" if given.groups else ""
    table = Table("way", "rate", "seed", "while learning", "the last", "test", "samples a second", title=about)
    for row in rows:
        shares = [f"{row[key]:.2%}" for key in ("online", "last", "test")]
        table.add_row(row["way"], f"{row['rate']:g}", str(row["seed"]), *shares, f"{row['samples a second']:,}")
    Console().print(table)
    kind = "residual" if given.residual else "plain"
    name = f"mnist-{kind}-{given.depth}-{given.device}{given.name}"
    options = f"--depth {given.depth}{' --residual' if given.residual else ''} --activation {given.activation}"
    options += f" --rates {' '.join(map(str, given.rates))} --seeds {' '.join(map(str, given.seeds))}"
    options += f" --groups {given.groups}" if given.groups else ""
    options += f" --half {given.half:g}" if given.half else ""
    options += f" --warm {given.warm:g}" if given.warm else ""
    rerun = f"python -m benchmarks.mnist_chain --data DIR {options} --device {given.device}"
    _report.write(given.out, name, {"methods": __doc__, "about": about, "rows": rows}, rerun=rerun)


if __name__ == "__main__":
    main()
