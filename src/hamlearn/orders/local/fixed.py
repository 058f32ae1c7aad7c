"""What a forward did when it was traced, and whether it would do the same now."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from hamlearn._base.replay import Buffers, devices_of, generators, set_generators, tensors_of
from hamlearn.errors import ConfigError

REMEDY = "Build an hl.local.Graph, which says itself what its nodes and edges are"
_CONSTANT = "_tensor_constant"
"""How `torch.fx` calls tensors that a forward makes or finds elsewhere, and leaves as attributes of the module."""
_PLAIN = (int, float, complex, bool, str, bytes, type(None))
_OWN = {*vars(nn.Module()), "training"}


class _Tracer(fx.Tracer):
    """Refuses to pass over a mode that a forward sets for a part of itself; notes the modules it goes through."""

    def __init__(self) -> None:
        super().__init__()
        self.mode = _mode()
        self.through: list[nn.Module] = []

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        """One call."""
        if _mode() != self.mode:
            raise ConfigError(
                "the forward computes a part of itself without gradients, or under autocast (`with …:`), which a "
                f"graph of calls does not keep. {REMEDY}"
            )
        return super().create_node(*args, **kwargs)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Whether a module is called as a whole."""
        leaf = super().is_leaf_module(m, module_qualified_name)
        if not leaf:
            self.through.append(m)
        return leaf


@dataclass(frozen=True)
class Trace:
    """What one trace of a forward found.

    Attributes:
        text: Its calls, as a text.
        held: Weights and other tensors of the module that they read.
        made: Tensors that the forward made, or holds elsewhere.
        through: Modules whose forward was followed, the root first.
    """

    text: str
    held: list[Tensor]
    made: list[Tensor]
    through: list[nn.Module]

    def same(self, other: Trace) -> bool:
        """Whether both make the same calls with the same numbers."""
        return (
            self.text == other.text
            and all(a is b for a, b in zip(self.held, other.held, strict=True))
            and all(map(torch.equal, self.made, other.made))
        )


class Fixed:
    """A forward that was traced once: attributes that it has read may change, if it would go on as before.

    Args:
        root: The module.
        trace: What its forward did.
    """

    def __init__(self, root: nn.Module, trace: Trace) -> None:
        self._root, self._trace = root, trace
        self._then = self._now()

    def check(self) -> None:
        """Raise where the forward has become another one."""
        now = self._now()
        if _alike(now, self._then):
            return
        for module in self._trace.through:
            if hooks_of(module):
                raise hooked(module)
        with traces(self._root) as trace:
            same = trace()[1].same(self._trace)
        if not same:
            raise ConfigError(
                f"an attribute or a buffer of {type(self._root).__name__} was changed after its forward had been "
                f"traced, which would go on with the old one: make a new learner. {REMEDY}"
            )
        self._then = now

    def _now(self) -> list[Any]:
        found: list[Any] = []
        for module in self._trace.through:
            _note({name: value for name, value in vars(module).items() if name not in _OWN}, found)
            _note(module._buffers, found)
            found.append(hooks_of(module))
        return found


def hooks_of(module: nn.Module) -> int:
    """How many functions are called before or after a module."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return sum(map(len, hooks))


def hooked(module: nn.Module) -> ConfigError:
    """What is said of hooks that nobody would call."""
    return ConfigError(
        f"{type(module).__name__} has hooks, which are not called where its forward is taken apart: put them on "
        f"the layers that it calls. {REMEDY}"
    )


@contextmanager
def traces(module: nn.Module) -> Iterator[Callable[[], tuple[fx.Graph, Trace]]]:
    """Within, the forward can be traced; nothing is left in the module afterwards.

    Raises:
        ConfigError: It writes to tensors while it is traced.
    """
    modules = list(module.modules())
    devices, buffers = devices_of(tensors_of(modules)), Buffers(modules)
    random, kept, before = generators(devices), buffers.keep(), set(vars(module))
    seen: list[Any] = []
    for one in modules:
        _note({name: value for name, value in vars(one).items() if name not in _OWN}, seen)
        _note(one._buffers, seen)
    tensors = [x for x in seen if isinstance(x, Tensor)]
    versions = [x._version for x in tensors]

    def clean() -> None:
        for name in set(vars(module)) - before:
            if name.startswith(_CONSTANT):
                delattr(module, name)

    def trace() -> tuple[fx.Graph, Trace]:
        clean()
        tracer = _Tracer()
        graph = tracer.trace(module)
        if [x._version for x in tensors] != versions:
            raise ConfigError(
                f"the forward of {type(module).__name__} writes to a tensor of the module, which a graph of calls "
                f"would not do again. {REMEDY}"
            )
        targets = [str(node.target) for node in graph.nodes if node.op == "get_attr"]
        found = [(target, _attribute(module, target)) for target in targets]
        held = [x for target, x in found if not target.startswith(_CONSTANT)]
        made = [x for target, x in found if target.startswith(_CONSTANT)]
        return graph, Trace(str(graph), held, made, list(dict.fromkeys([module, *tracer.through])))

    try:
        yield trace
    finally:
        clean()
        buffers.put_back(kept)
        set_generators(devices, random)


@contextmanager
def other_mode(module: nn.Module) -> Iterator[None]:
    """Evaluation mode within, or training mode where it was that."""
    modes = [(one, one.training) for one in module.modules()]
    try:
        module.train(not module.training)
        yield
    finally:
        for one, mode in modes:
            one.training = mode


def _mode() -> tuple[bool, bool]:
    return torch.is_grad_enabled(), any(map(torch.is_autocast_enabled, ("cpu", "cuda")))


def _attribute(module: nn.Module, target: str) -> Any:
    found: Any = module
    for name in target.split("."):
        found = getattr(found, name)
    return found


def _note(value: Any, found: list[Any]) -> None:
    """All that a value is made of, as far as it is of lists, tuples and mappings."""
    if isinstance(value, Mapping):
        found.append(len(value))
        for name, one in value.items():
            found.append(name)
            _note(one, found)
    elif isinstance(value, list | tuple):
        found.append(len(value))
        for one in value:
            _note(one, found)
    else:
        found.append(value)


def _alike(now: list[Any], then: list[Any]) -> bool:
    return len(now) == len(then) and all(
        a is b or (type(a) is type(b) and isinstance(a, _PLAIN) and a == b) for a, b in zip(now, then, strict=True)
    )
