"""Evaluate a field a second time under the conditions of the first: random numbers, autocast, buffers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from hamlearn._base.replay import Buffers


class Replay:
    """The conditions under which a chain was run forward, and how to set them again.

    Random numbers: draw k comes from generators seeded by (one number drawn per forward run) + k. Any step can
    then be replayed in any order, and nothing is kept per step; a saved generator state would cost 5 kB each.
    """

    def __init__(self, device: torch.device, preserve_rng: bool, modules: Iterable[object]) -> None:
        self.generators = _generators(device) if preserve_rng else []
        self.base = int(torch.randint(2**62, (), device="cpu").item()) if preserve_rng else 0
        kinds = {"cpu", device.type}
        self.casts = {kind: _autocast_state(kind) for kind in kinds if torch.amp.is_autocast_available(kind)}
        self.cache = torch.is_autocast_cache_enabled()
        fields = {m: None for m in modules if isinstance(m, nn.Module)}
        parts = {sub: sub.training for m in fields for sub in m.modules()}
        self.modes = list(parts.items())
        self.buffers = Buffers(parts)
        self.contexts: list[torch.autocast] = []

    def evaluate(self, k: int, call: Callable[[Any, Tensor], Tensor], u: Any, h: Tensor) -> Tensor:
        """`call(u, h)` with the random numbers of draw `k`; inside `again`, with the autocast of the first run."""
        for generator in self.generators:
            generator.manual_seed(self.base + k)
        if not self.contexts:
            return call(u, h)
        with ExitStack() as stack:
            for context in self.contexts:
                stack.enter_context(context)
            return call(u, h)

    @contextmanager
    def own_random_numbers(self) -> Iterator[None]:
        """Leave the global generators as they were before."""
        states = [generator.get_state() for generator in self.generators]
        try:
            yield
        finally:
            for generator, state in zip(self.generators, states, strict=True):
                generator.set_state(state)

    @contextmanager
    def quietly(self) -> Iterator[None]:
        """Evaluate fields again inside, in the modes of the first run; generators and statistics do not move."""
        now = [(sub, sub.training) for sub, training in self.modes if sub.training != training]
        kept = self.buffers.keep()
        try:
            for sub, training in now:
                sub.training = not training
            with self.own_random_numbers():
                yield
        finally:
            for sub, training in now:
                sub.training = training
            self.buffers.put_back(kept)

    @contextmanager
    def again(self) -> Iterator[None]:
        """Evaluate fields again inside, quietly, with the autocast of the forward run."""
        with ExitStack() as stack:
            stack.enter_context(self.quietly())
            for kind, (enabled, dtype) in self.casts.items():
                if enabled or torch.is_autocast_enabled(kind):
                    # Derivatives are taken outside autocast; this outer level also keeps the cache of cast
                    # weights alive between the steps, since leaving the outermost level empties it.
                    stack.enter_context(torch.autocast(kind, enabled=False))
                if enabled:
                    self.contexts.append(torch.autocast(kind, dtype=dtype, cache_enabled=self.cache))
            stack.callback(self.contexts.clear)
            yield


def _autocast_state(kind: str) -> tuple[bool, torch.dtype]:
    return torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)


def _generators(device: torch.device) -> list[torch.Generator]:
    found = [torch.default_generator]
    if device.type != "cpu":
        module = torch.get_device_module(device)
        index = device.index if device.index is not None else module.current_device()
        found += list(getattr(module, "default_generators", ()))[index : index + 1]
    return found


def checksum(h: Tensor) -> Tensor:
    """A number that changes with any bit of `h` and with the order of its entries (a 0-d int64 tensor)."""
    word = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[h.element_size()]
    bits = h.detach().contiguous().view(word).flatten().to(torch.int64)
    # Odd multipliers, different at every place: two changes cannot cancel as they would in a plain sum.
    place = torch.arange(bits.numel(), device=h.device) * 2 + 1
    return (bits * (place * 0x2545F4914F6CDD1D)).sum()
