"""ω: the derivatives with respect to the weights and to u, summed along the echo in constant memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hamlearn._base.torch_private import foreach_add_
from hamlearn.errors import ConfigError
from hamlearn.reversible._chain import Chain


class Sums:
    """One running sum per place."""

    def __init__(self, size: int) -> None:
        self.values: list[Tensor | None] = [None] * size
        self.owned = [False] * size

    def add(self, places: Sequence[int], terms: Sequence[Tensor | None]) -> None:
        """Add one term at each place; None adds nothing."""
        kept = [value for i in places if self.owned[i] and (value := self.values[i]) is not None]
        given = [term for term in terms if term is not None]
        if len(kept) == len(given) == len(places):
            if places:
                foreach_add_(kept, given)
            return
        for i, term in zip(places, terms, strict=True):
            value = self.values[i]
            if term is None:
                continue
            if value is None:
                self.values[i] = term
            elif self.owned[i]:
                value.add_(term)
            else:
                # Autograd may hand out one tensor twice, or an expanded one: the first is not ours to change.
                self.values[i], self.owned[i] = value + term, True


class Omega:
    """The sums along one echo of a chain."""

    def __init__(self, chain: Chain) -> None:
        drive = chain.drive
        self.chain, self.sequence = chain, drive.sequence
        self.u = Sums(len(drive.places))
        self.theta = Sums(len(chain.weights.tensors))
        self.u_places = [drive.places.index(i) for i in drive.wanted]
        if self.sequence:
            for place in self.u_places:
                self.u.values[place] = torch.zeros_like(drive.tensors[place])
        self.looked: set[int] = set()

    def leaves(self, module: object, v: Tensor, h: Tensor, u_leaves: Sequence[Tensor]) -> list[Tensor]:
        """What v = module(u, h) is to be differentiated by: h, then u, then the weights of `module`."""
        leaves = [h, *u_leaves, *self.chain.weights.of(module)[0]]
        if id(module) not in self.looked:
            self.chain.weights.require_same(module)
            # What else it depends on is looked for once for good, and in the first two of every echo (readout and
            # field) again.
            if len(self.looked) < 2 or self.chain.trusted.get(id(module)) is not module:
                _require_known(module, v, leaves)
                self.chain.trusted[id(module)] = module
            self.looked.add(id(module))
        return leaves

    def add(self, k: int, module: object, terms: Sequence[Tensor | None]) -> None:
        """Add the terms of step k, in the order of `leaves` after h."""
        n_u = len(self.u_places)
        if self.sequence:
            for place, term in zip(self.u_places, terms[:n_u], strict=True):
                total = self.u.values[place]
                if term is not None and total is not None:
                    total[k].add_(term)
        else:
            self.u.add(self.u_places, terms[:n_u])
        self.theta.add(self.chain.weights.of(module)[1], terms[n_u:])


def _require_known(module: object, v: Tensor, leaves: Sequence[Tensor]) -> None:
    """Raise `ConfigError` if a field depends on tensors that would be left without their gradient."""
    known = {id(x) for x in leaves}
    stack, seen = [v.grad_fn], set()
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf: Tensor | None = getattr(node, "variable", None)  # of the nodes that accumulate into a leaf
        if leaf is not None and id(leaf) not in known:
            raise ConfigError(
                f"{type(module).__name__} uses a tensor of shape {tuple(leaf.shape)} that requires a "
                "gradient but is not among its parameters() during the backward run, so it would get none. "
                "Make the field an nn.Module that owns it, hand it in through u, or use memory='stored'."
            )
        stack.extend(after for after, _ in node.next_functions)
