"""Tokens that wait for their echo, and how they are written down."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from hamlearn import _tree
from hamlearn.hyper import Rates
from hamlearn.state import Sample


@dataclass(slots=True)
class Token:
    """One token with the state it met, and the graph from that state to the next one and to the loss."""

    sample: Sample
    rates: Rates
    h: list[Tensor]
    h_next: list[Tensor]
    loss: Tensor | None
    y: Any
    fresh: bool

    @property
    def gain(self) -> float:
        """τφ."""
        return self.rates.tau * self.rates.phi


def pack(tokens: Iterable[Token]) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    """Inputs, targets, rates and states of tokens, as tensors and JSON; graphs are left out."""
    tensors: dict[str, Tensor] = {}
    described = []
    for index, token in enumerate(tokens):
        about: dict[str, Any] = {"rates": list(token.rates), "fresh": token.fresh}
        for part, tree in (("u", token.sample.u), ("target", token.sample.target), ("h", token.h)):
            leaves, spec = ([], None) if tree is None else _tree.flatten(tree)
            about[part] = {"absent": tree is None, "count": len(leaves), "tree": _tree.dumps(spec)}
            tensors |= {f"{index}/{part}/{i}": leaf for i, leaf in enumerate(leaves)}
        described.append(about)
    return tensors, described


def unpack(tensors: dict[str, Tensor], described: list[dict[str, Any]]) -> Iterator[Token]:
    """The tokens that `pack` wrote down, without graphs."""
    for index, about in enumerate(described):
        parts: dict[str, Any] = {}
        for part in ("u", "target", "h"):
            leaves = [tensors[f"{index}/{part}/{i}"] for i in range(about[part]["count"])]
            absent = about[part]["absent"]
            parts[part] = None if absent else _tree.unflatten(leaves, _tree.loads(about[part]["tree"]))
        sample = Sample(parts["u"], parts["target"])
        yield Token(sample, Rates(*about["rates"]), parts["h"], [], None, None, about["fresh"])
