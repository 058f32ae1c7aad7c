"""A network that is given more inputs keeps what it has learned."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from hamlearn._base import trees
from hamlearn.errors import ConfigError
from hamlearn.learner import Learner
from hamlearn.sample import Sample
from hamlearn.state import checkpoint


def carry_over(old: Learner, new: Learner, u: Tensor) -> Learner:
    """`new`, a learner of a larger network that has not begun, with all that `old` has come to.

    Each weight, costate and buffer of `old` takes the first places along each dimension of its namesake in `new`.
    What is added keeps the value that `new` began with, costates and sensitivities begin at 0. Where the inputs
    are first multiplied by a matrix, an input of 0 at the new places gives the output that `old` would give.
    Tokens that wait for an echo have fewer inputs: they are dropped, and the state starts again, as after a
    boundary.

    Args:
        old: It is left as it was, but for tokens that waited.
        new: Made from the same factory for more inputs.
        u: An input of `new`.

    Raises:
        ConfigError: The larger network has not the weights of the smaller one.
    """
    _check(old.network, new.network)
    if old.stored_tokens:
        old.reset()
    state = old.state.h
    if state is not None:
        begun, fresh = trees.flatten(state)[0], trees.flatten(new.network.initial_state(u))[0]
        if [leaf.shape for leaf in begun] != [leaf.shape for leaf in fresh]:
            raise ConfigError(
                f"with more features the state of the network became {trees.describe(fresh)}, and was "
                f"{trees.describe(begun)}. Let its size not depend on the number of features."
            )
    begin, kept = new.state_dict(), old.state_dict()
    larger = begin["tensors"]
    if any(name.startswith("E/") for name in kept["tensors"]):
        larger = larger | _insensitive(new, u)
    kept["tensors"] = {name: _placed(tensor, larger.get(name)) for name, tensor in kept["tensors"].items()}
    kept["about"]["model"] = begin["about"]["model"]
    kept["about"]["layout"] = checkpoint.layout(kept["tensors"])
    with torch.random.fork_rng(devices=[]):
        new.load_state_dict(kept)
    return new


def _insensitive(learner: Learner, u: Tensor) -> dict[str, Tensor]:
    """Sensitivities of 0: inputs that were always 0 have left the state insensitive to their weights."""
    begun = copy.deepcopy(learner)
    with torch.random.fork_rng(devices=[]):
        begun.step(Sample(u))
    tensors = begun.state_dict()["tensors"]
    return {name: torch.zeros_like(tensor) for name, tensor in tensors.items() if name.startswith("E/")}


def _placed(small: Tensor, large: Tensor | None) -> Tensor:
    if large is None or large.shape == small.shape:
        return small
    whole = large.clone()
    whole[tuple(slice(size) for size in small.shape)] = small
    return whole


def _check(old: nn.Module, new: nn.Module) -> None:
    before, after = (dict(net.named_parameters()) | dict(net.named_buffers()) for net in (old, new))
    for name in (*before, *after):
        one, other = before.get(name), after.get(name)
        fits = one is not None and other is not None and one.dim() == other.dim()
        if not fits or any(a > b for a, b in zip(one.shape, other.shape, strict=True)):  # type: ignore[union-attr]
            shapes = ["is not there" if w is None else str(tuple(w.shape)) for w in (one, other)]
            raise ConfigError(
                f"a new feature asks for a larger network, but its weight {name!r} was {shapes[0]} and would be "
                f"{shapes[1]}. Let module(n) have the same weights for every n, none of them smaller for a "
                "larger n."
            )
