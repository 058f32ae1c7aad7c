"""State net and output net: ḣ = f_h(u, h, θh) (Eq. 3) and y = f_y(u, h, θy) (Eq. 4)."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from hamlearn._base import trees
from hamlearn._base.replay import evaluating
from hamlearn._base.torch_private import tree_flatten, tree_map, tree_unflatten
from hamlearn.errors import REFUSALS, ConfigError, HamlearnError, SampleError

Net = Callable[..., Any]
Reads = Literal["uh", "u", "h"]
"""What a net is called with: input and state, or one of them."""


class Network(nn.Module):
    """A state net f_h and an output net f_y, either of which may be absent.

    ḣ = f_h(u, h), y = f_y(u, h) (Eq. 3, 4). Parameters are named `state.…` and `output.…`.

    Args:
        state: f_h, called as `state(u, h)`; `None` for a net without state. If its `forward` has arguments `t` or
            `tau` after these, it is also given the time before the step, or its length, each as a tensor
            without axes.
        output: f_y, called as `output(u, h)`; `None` for the identity on h.
        h0: State at the start and after each boundary: a tensor or a pytree of tensors, used as it is, or a
            function of the input u that returns one (to size it by the batch); `None` where the state net has
            a method `initial_state(u)`. A `nn.Parameter` is learned with `Echo` and `Sensitivity` credit;
            `Cleared` and `Forward` do not reach back to it.
        transition: `"rate"`: the state net returns ḣ. `"next"`: it returns the next state ĥ, and
            f_h = (−h + ĥ)/τ (Eq. 10).

    Example:
        >>> import torch
        >>> from torch import nn
        >>> class Leaky(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.inputs = nn.Linear(2, 3)
        ...     def forward(self, u, h):
        ...         return torch.tanh(self.inputs(u)) - h
        >>> network = Network(Leaky(), h0=torch.zeros(3))
        >>> [name for name, _ in network.named_parameters()]
        ['state.inputs.weight', 'state.inputs.bias']
    """

    def __init__(
        self,
        state: Net | None = None,
        output: Net | None = None,
        h0: Any = None,
        transition: Literal["rate", "next"] = "rate",
    ) -> None:
        super().__init__()
        if state is None and output is None:
            raise ConfigError("a Network needs a state net, an output net, or both; got neither")
        if transition not in ("rate", "next"):
            raise ConfigError(f"transition={transition!r} must be 'rate' (returns ḣ) or 'next' (returns ĥ)")
        if state is None and h0 is not None:
            raise ConfigError("h0 was given but there is no state net: drop h0, or give state=")
        self.state = state
        self.output = output
        self.transition = transition
        self._state_reads: Reads = "uh"
        self._output_reads: Reads = "uh"
        self._clock = _clock_of(state, 2)
        self._visible: Callable[[Any], Any] | None = None
        self._sized_by_batch = False
        self._start: Callable[[Any], Any] | None = None
        if callable(h0) and not isinstance(h0, Tensor):
            self._start = h0
        elif h0 is not None:
            leaves, spec = tree_flatten(h0)
            for index, leaf in enumerate(leaves):
                if not isinstance(leaf, Tensor):
                    raise ConfigError(
                        f"h0 holds a {type(leaf).__name__}: give tensors, or a function of the input"
                    )
                if isinstance(leaf, nn.Parameter):
                    self.register_parameter(f"h0_{index}", leaf)
                else:
                    self.register_buffer(f"h0_{index}", leaf.detach().clone())
            self._h0_names = tree_unflatten([f"h0_{index}" for index in range(len(leaves))], spec)
            self._start = self._given_start
        elif state is not None and hasattr(state, "initial_state"):
            self._start = state.initial_state
        elif state is not None:
            raise ConfigError("the state net needs a first state: pass h0=, a tensor or a function of the input u")

    @classmethod
    def feedforward(
        cls,
        module: nn.Module,
        role: Literal["output", "state"] = "output",
        readout: nn.Module | None = None,
    ) -> Network:
        """A net without memory, `module(u)`, as output net or as state net.

        As `"state"` net its output is the next state, ĥ = module(u), and `readout(h)`, if given, is the output
        net: a feed-forward net split over both. A learner clears h before each sample with
        `reset_h="sample"`.

        Example:
            >>> import torch
            >>> network = Network.feedforward(torch.nn.Linear(2, 3), role="state")
            >>> network.transition
            'next'
        """
        if role == "output":
            if readout is not None:
                raise ConfigError("readout is for role='state'; with role='output' make it part of the module")
            network = cls(output=module)
            network._output_reads = "u"
            return network
        if role != "state":
            raise ConfigError(f"role={role!r} must be 'output' or 'state'")
        network = cls(state=module, output=readout, h0=_ZerosLikeOutput(module), transition="next")
        network._state_reads = "u"
        network._clock = _clock_of(module, 1)
        network._output_reads = "h"
        return network

    @classmethod
    def recurrent(
        cls,
        cell: nn.Module,
        readout: nn.Module | None = None,
        h0: Any = None,
        transition: Literal["next", "rate"] = "next",
    ) -> Network:
        """A recurrent cell, `cell(u, h)`, and `readout(h)` as output net.

        The cell returns the next state; with `transition="rate"`, as the cells for continuous time do, ḣ.

        `nn.RNNCell`, `nn.GRUCell` and `nn.LSTMCell` fit as they are; of an LSTM's state (h, c) the readout
        sees h. A cell of your own starts at `cell.initial_state(u)` if it has that method, at zeros if it has a
        `hidden_size`, and else needs `h0`; its readout sees `cell.visible(h)` if it has that method, and else h.
        An `h0` without batch dimension is repeated over the batch.

        Example:
            >>> import torch
            >>> cell, readout = torch.nn.LSTMCell(2, 5), torch.nn.Linear(5, 1)
            >>> network = Network.recurrent(cell, readout)
            >>> h, c = network.initial_state(torch.zeros(7, 2))
            >>> h.shape
            torch.Size([7, 5])
        """
        if isinstance(cell, nn.RNNBase):
            raise ConfigError(
                f"nn.{type(cell).__name__} takes whole sequences: give nn.{type(cell).__name__}Cell to stream "
                "tokens, or use hl.Network.feedforward for a sequence per sample"
            )
        if h0 is None and not hasattr(cell, "initial_state"):
            if not isinstance(getattr(cell, "hidden_size", None), int):
                raise ConfigError(
                    f"{type(cell).__name__} has no hidden_size to size the first state by: pass h0, "
                    "a tensor or a function of the input"
                )
            h0 = _ZerosForCell(cell)
        network = cls(state=cell, output=readout, h0=h0, transition=transition)
        network._output_reads = "h"
        network._visible = _first if isinstance(cell, nn.LSTMCell) else getattr(cell, "visible", None)
        network._sized_by_batch = True
        return network

    @property
    def memoryless(self) -> bool:
        """Whether the next state depends on the input alone."""
        return self.transition == "next" and self._state_reads == "u"

    def initial_state(self, u: Any) -> Any:
        """h0 for the input `u`, cut from any graph; `None` where there is no state net."""
        return trees.detach(self.start(u))

    def start(self, u: Any) -> Any:
        """h0 for the input `u`, as part of the graph where it is learned."""
        if self._start is None:
            return None
        try:
            return self._start(u)
        except HamlearnError:
            raise
        except REFUSALS as error:
            reason = str(error).rstrip(".")
            raise SampleError(
                f"the first state could not be made for u={trees.describe(u)}: {reason}. Check the sample's shape "
                "and dtype, and h0"
            ) from error

    def first_names(self) -> Any:
        """Names of the tensors of h0, in the structure of the state; `None` where h0 is found from the input."""
        return getattr(self, "_h0_names", None)

    @property
    def reads_time(self) -> bool:
        """Whether the state net is given the time, or the length of the step."""
        return bool(self._clock)

    def state_net(self, u: Any, h: Any, t: float | Tensor = 0.0, tau: float | Tensor = 1.0) -> Any:
        """What the state net returns: ḣ, or ĥ where `transition` is `"next"`."""
        if not self._clock:
            return self._call("state", self.state, self._state_reads, u, h)
        given = {"t": as_time(t), "tau": as_time(tau)}
        timed = partial(cast(Net, self.state), **{name: given[name] for name in self._clock})
        return self._call("state", timed, self._state_reads, u, h)

    def state_part(self, part: Net, u: Any, h: Any) -> Any:
        """What a part of the state net, or another function of (u, h) that belongs to it, returns."""
        return self._call("state", part, "uh", u, h)

    def output_net(self, u: Any, h: Any) -> Any:
        """Output y = f_y(u, h); the identity on h where there is no output net."""
        if self._visible is not None:
            h = self._visible(h)
        if self.output is None:
            return h
        return self._call("output", self.output, self._output_reads, u, h)

    def forward(self, u: Any, h: Any, net: Literal["state", "output"]) -> Any:
        """One of the two nets."""
        return self.state_net(u, h) if net == "state" else self.output_net(u, h)

    def _call(self, name: str, net: Net | None, reads: Reads, u: Any, h: Any) -> Any:
        assert net is not None
        try:
            if reads == "u":
                return net(u)
            if reads == "uh":
                return net(u, h)
            return net(h)
        except (torch.OutOfMemoryError, HamlearnError):
            raise
        except REFUSALS as error:
            given = {"u": "u={u}", "uh": "u={u} and h={h}"}.get(reads, "h={h}")
            shapes = given.format(u=trees.describe(u), h=trees.describe(h))
            remedy = (
                "Check the sample's shape and dtype; if the batch size changed in mid-sequence, end the sequence "
                "with boundary=True"
            )
            if reads == "uh" and isinstance(error, TypeError):
                remedy = (
                    f"It is called as {name}(u, h); for a module of u alone use hl.Network.feedforward(module)"
                )
            reason = _sizes(net, u) if "u" in reads else None
            if reason is None and "u" in reads:
                remedy = _types(net, u, str(error)) or remedy
            reason = reason or str(error).rstrip(".")
            raise SampleError(f"the {name} net could not take {shapes}: {reason}. {remedy}") from error

    def _given_start(self, u: Any) -> Any:
        h0 = tree_map(self.__getattr__, self._h0_names)
        if not self._sized_by_batch:
            return h0
        return tree_map(lambda leaf: leaf.expand(*u.shape[: max(u.dim() - leaf.dim(), 0)], *leaf.shape), h0)


def as_time(t: float | Tensor) -> Tensor:
    """A time as functions of the user's see it, the same in both engines.

    Example:
        >>> as_time(0.5)
        tensor(0.5000, dtype=torch.float64)
    """
    return t if isinstance(t, Tensor) else torch.tensor(t, dtype=torch.float64)


def _clock_of(net: Net | None, given: int) -> tuple[str, ...]:
    """Which of `t` and `tau` a net takes besides its first arguments, of which there are `given`."""
    if net is None:
        return ()
    try:
        taken = inspect.signature(net.forward if isinstance(net, nn.Module) else net).parameters
    except (TypeError, ValueError):  # A function that is not written in Python does not say.
        return ()
    return tuple(name for name in list(taken)[given:] if name in ("t", "tau"))


def _first(h: tuple[Tensor, Tensor]) -> Tensor:
    return h[0]


class _ZerosForCell:
    """Zeros in the shape of a recurrent cell's state, sized by the batch of u."""

    def __init__(self, cell: nn.Module) -> None:
        self.cell = cell

    def __call__(self, u: Tensor) -> Any:
        weight = next(self.cell.parameters(), u)
        size = self.cell.hidden_size
        h = weight.new_zeros(*u.shape[:-1], size) if isinstance(size, int) else None
        return (h, h) if isinstance(self.cell, nn.LSTMCell) else h


class _ZerosLikeOutput:
    """Zeros in the shape of a feed-forward net's output, found once per shape of input."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.shapes: dict[str, tuple[list[Any], trees.Spec]] = {}

    def __call__(self, u: Any) -> Any:
        weight = next(self.module.parameters(), torch.empty(0))
        key = f"{trees.describe(u)} {weight.dtype} {weight.device}"
        if key not in self.shapes:
            # Only what the state looks like is kept: its tensors may belong to a recording.
            leaves, spec = trees.flatten(self._probe(u, weight))
            self.shapes[key] = [(leaf.shape, leaf.dtype, leaf.device) for leaf in leaves], spec
        described, spec = self.shapes[key]
        zeros = [torch.zeros(shape, dtype=dtype, device=device) for shape, dtype, device in described]
        return trees.unflatten(zeros, spec)

    def _probe(self, u: Any, weight: Tensor) -> Any:
        """What the module returns for `u`; modes, statistics and random numbers stay as they were."""
        with torch.no_grad(), evaluating(self.module, [weight.get_device()] if weight.is_cuda else []):
            return self.module(u)


def _sizes(net: Net, u: Any) -> str | None:
    """What a sample has and what the first layer takes, where both are known and differ."""
    while isinstance(net, nn.Sequential) and len(net):
        net = net[0]
    takes = {
        nn.Linear: "in_features",
        nn.RNNCell: "input_size",
        nn.GRUCell: "input_size",
        nn.LSTMCell: "input_size",
    }
    if type(net) not in takes or not isinstance(u, Tensor) or not u.dim():
        return None
    size = getattr(net, takes[type(net)])
    if u.shape[-1] == size:
        return None
    return f"the stream gives {u.shape[-1]} inputs, and the first layer, {type(net).__name__}, takes {size}"


def _types(net: Net, u: Any, error: str) -> str | None:
    """How to give a sample the type of the weights, where that is what the net complains of."""
    weights = net.parameters() if isinstance(net, nn.Module) else ()
    dtype = next((weight.dtype for weight in weights if weight.is_floating_point()), None)
    # Indices are whole numbers, whatever the weights are.
    complains = "type" in error and "indices" not in error
    if dtype is None or not complains or not isinstance(u, Tensor) or u.dtype is dtype:
        return None
    has, wants = str(u.dtype).removeprefix("torch."), str(dtype).removeprefix("torch.")
    return (
        f"u is {has} and the weights are {wants}: give u.to({dtype}), or let the stream convert it, for example "
        f"from_any(arrays, dtype={dtype})"
    )
