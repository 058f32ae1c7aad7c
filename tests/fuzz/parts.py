"""What a fuzzed network is made of: plain modules, how to call them, and what to feed them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import hamlearn as hl

INPUTS, SIZE, OUTPUTS, CLASSES = 3, 4, 2, 4


@dataclass
class Parts:
    """Modules of one network, the calls that the judge makes, and the `hl.Network` that a learner gets.

    Attributes:
        network: Makes the `hl.Network` out of the same modules.
        f_y: Output net, called with u and h.
        f_h: State net, called with u and h; `None` where there is no state.
        h0: First state for an input.
        transition: "rate" or "next".
        state: The state net's module, for names of parameters and buffers.
        output: The output net's module.
        feed: Shape of one input (without batch), or the number of classes of an integer input.
        target: Shape of one target, or "class".
        batches: Batch shapes that the modules take.
        lasts: Whether the state lasts from sample to sample, as an echo needs.
        traits: What else must be known: "random", "buffers", "python" (forward changes Python attributes),
            "gain" (has something to change between runs), "may be refused" (by name, at the first sample).
        learned_h0: The first state, where it is a parameter.
    """

    network: Callable[[], hl.Network]
    f_y: Callable[[Any, Any], Any]
    f_h: Callable[[Any, Any], Any] | None = None
    h0: Callable[[Any], Any] | None = None
    transition: str = "rate"
    state: nn.Module | None = None
    output: nn.Module | None = None
    feed: tuple[int, ...] | int = (INPUTS,)
    target: tuple[int, ...] | str = (OUTPUTS,)
    batches: tuple[tuple[int, ...], ...] = ((), (1,), (3,))
    lasts: bool = True
    traits: frozenset[str] = frozenset()
    learned_h0: nn.Parameter | None = None

    def modules(self) -> list[nn.Module]:
        return [m for m in (self.state, self.output) if m is not None]

    def parameters(self) -> dict[str, nn.Parameter]:
        """Parameters by the names that a learner gives them, each once."""
        found: dict[str, nn.Parameter] = {}
        if self.learned_h0 is not None:
            found["h0_0"] = self.learned_h0
        for prefix, module in (("state", self.state), ("output", self.output)):
            for name, parameter in module.named_parameters() if module is not None else ():
                if not any(parameter is other for other in found.values()):
                    found[f"{prefix}.{name}"] = parameter
        return found

    def buffers(self) -> dict[str, Tensor]:
        return {
            f"{prefix}.{name}": buffer
            for prefix, module in (("state", self.state), ("output", self.output))
            if module is not None
            for name, buffer in module.named_buffers()
        }

    def draw_u(self, generator: torch.Generator, batch: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        if isinstance(self.feed, int):
            return torch.randint(0, self.feed, batch, generator=generator)
        return torch.randn(*batch, *self.feed, generator=generator, dtype=torch.float64).to(dtype)

    def draw_target(self, generator: torch.Generator, batch: tuple[int, ...], dtype: torch.dtype) -> Any:
        if self.target == "class":
            return torch.randint(0, CLASSES, batch, generator=generator)
        return torch.randn(*batch, *self.target, generator=generator, dtype=torch.float64).to(dtype)


def output_net(module: nn.Module, **more: Any) -> Parts:
    """A feed-forward net as output net."""
    return Parts(
        network=lambda: hl.Network.feedforward(module),
        f_y=lambda u, h: module(u),
        output=module,
        **{"lasts": False, **more},
    )


def state_net(module: nn.Module, readout: nn.Module | None, size: int, **more: Any) -> Parts:
    """A feed-forward net as state net, with or without a readout."""

    def h0(u: Tensor) -> Tensor:
        batch = u.shape if u.dtype == torch.int64 else u.shape[:-1]
        return torch.zeros(*batch, size, dtype=next(module.parameters()).dtype)

    return Parts(
        network=lambda: hl.Network.feedforward(module, role="state", readout=readout),
        f_h=lambda u, h: module(u),
        f_y=(lambda u, h: h) if readout is None else (lambda u, h: readout(h)),
        h0=h0,
        transition="next",
        state=module,
        output=readout,
        **{"lasts": False, **more},
    )


def recurrent(
    cell: nn.Module, readout: nn.Module, visible: Callable[[Any], Any] = lambda h: h, **more: Any
) -> Parts:
    """A cell that returns the next state, and a readout of it."""
    if "h0" not in more:
        size = cell.hidden_size

        def h0(u: Tensor) -> Any:
            batch = u.shape if u.dtype == torch.int64 else u.shape[:-1]
            zero = torch.zeros(*batch, size, dtype=next(readout.parameters()).dtype)
            return (zero, zero.clone()) if isinstance(cell, nn.LSTMCell) else zero

        more["h0"] = h0
    given = more.pop("given_h0", None)
    return Parts(
        network=lambda: hl.Network.recurrent(cell, readout, h0=given),
        f_h=lambda u, h: cell(u, h),
        f_y=lambda u, h: readout(visible(h)),
        transition="next",
        state=cell,
        output=readout,
        **more,
    )


def general(state: nn.Module, output: nn.Module, h0: Any, transition: str = "rate", **more: Any) -> Parts:
    """Two modules of u and h, and a first state: a tree, or a function of u."""
    return Parts(
        network=lambda: hl.Network(state, output, h0=h0, transition=transition),
        f_h=lambda u, h: state(u, h),
        f_y=lambda u, h: output(u, h),
        h0=h0 if not isinstance(h0, Tensor) else lambda u: h0.to(u.dtype),
        transition=transition,
        state=state,
        output=output,
        **more,
    )
