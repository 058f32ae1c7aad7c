"""Notices what has changed in a module since a learner was built from it."""

from __future__ import annotations

from operator import attrgetter, getitem
from typing import Any

import torch
from torch import Tensor, nn

from hamlearn.errors import ConfigError
from hamlearn.orders.local.fixed import hooked, hooks_of
from hamlearn.orders.local.layers import module_hooks, settings_of
from hamlearn.orders.local.local_system import LocalSystem
from hamlearn.orders.local.stacked import LayerStack

_requires_grad = attrgetter("requires_grad")
_AT_ONCE = 4


class ModuleWatch:
    """Looks before every step whether the learner's lists of modules and weights are still those of the module.

    Attributes of modules, modes and hooks may change at any time, and the next step sees them. A weight or a
    module that is exchanged, frozen, converted or added would be passed over in silence, and so would all of these
    in layers that are stacked, where the modules themselves are not called. Of stacked layers a step looks at a
    few, and the next step at the next few: to touch all of a deep stack would take as long as a part of the step.

    Args:
        modules: All modules below the root, and the root.
        system: The learner's weights, in their slots.
    """

    def __init__(self, modules: list[nn.Module], system: LocalSystem) -> None:
        self._stacks = [cell for cell in system.cells if isinstance(cell, LayerStack)]
        layers = [(stack, layer) for stack in self._stacks for layer in range(stack.length)]
        stacked = {m for stack in self._stacks for m in stack.modules}
        owned = {slot for stack in self._stacks for slot in stack.slots}
        self._apart = [w for slot, w in enumerate(system.theta) if slot not in owned]
        self._kinds = list(map(_kind, self._apart))
        self._device = system.theta[0].device.type
        apart = [m for m in modules if m not in stacked]
        wide = [m._modules for m in apart if layers and len(m._modules) > _AT_ONCE]
        self._always = _Part([m for m in apart if not layers or len(m._modules) <= _AT_ONCE], [], [])
        self._sizes = [(held, len(held)) for held in wide]
        members = [(held, name, child) for held in wide for name, child in held.items()]
        count = -(-len(layers) // _AT_ONCE)
        self._parts = [_Part([], layers[k::count], members[k::count]) for k in range(count)]
        self._turn = 0
        self._fixed = system.wiring.fixed
        root = system.wiring.root
        # Its parts are called, and not the root itself.
        self._uncalled = [root] if isinstance(root, nn.Sequential) and self._fixed is None else []

    @property
    def parts(self) -> int:
        """How many checks look at everything."""
        return max(1, len(self._parts))

    def check(self) -> None:
        """Raise where the module is another than the learner was built from."""
        self._always.check()
        if self._fixed is not None:
            self._fixed.check()
        for module in self._uncalled:
            if hooks_of(module):
                raise hooked(module)
        for held, size in self._sizes:
            if len(held) != size:
                raise _exchanged()
        if list(map(_kind, self._apart)) != self._kinds:
            raise ConfigError(
                "a weight has got another dtype, device or shape since the learner was made (module.to()): "
                "convert the module first, and make the learner afterwards"
            )
        if self._parts:
            self._parts[self._turn].check()
            self._turn = (self._turn + 1) % len(self._parts)
            if torch.is_autocast_enabled(self._device):
                raise ConfigError("layers that are stacked do not follow autocast: pass stacked=False")


class _Part:
    """Some of the modules; the comparisons run in C."""

    def __init__(
        self, modules: list[nn.Module], layers: list[tuple[LayerStack, int]], members: list[tuple[Any, str, Any]]
    ) -> None:
        stacked = [m for stack, layer in layers for m in stack.nodes[layer].module.modules()]
        modules = modules + stacked
        self.children = [module._modules for module in modules]
        self.children_then = [dict(held) for held in self.children]
        self.parameters = [module._parameters for module in modules]
        self.parameters_then = [dict(held) for held in self.parameters]
        found = [(held, n, w) for held in self.parameters for n, w in held.items() if w is not None]
        self.weights: list[Tensor] = [w for _, _, w in found]
        self.learnable = list(map(_requires_grad, self.weights))
        # Tensors of one entry compare by value; all others, where they are not the same, raise.
        self.single = [(held, n, w) for held, n, w in found if w.numel() < 2] + members
        self.hooks = [hooks for m in stacked for hooks in module_hooks(m)]
        settings = [(vars(m), n) for m in stacked for n in settings_of(m)]
        self.settings, self.setting_names = [d for d, _ in settings], [n for _, n in settings]
        self.settings_then = list(map(getitem, self.settings, self.setting_names))
        self.layers = layers

    def check(self) -> None:
        if self.children != self.children_then or self.exchanged():
            raise _exchanged()
        if list(map(_requires_grad, self.weights)) != self.learnable:
            raise ConfigError(
                "a weight was frozen or set free after the learner was made: make a new learner; to hold weights "
                "still for a while, give them a schedule as beta that is 0 then"
            )
        if any(self.hooks):
            raise ConfigError(
                "a hook was added to a layer after the learner had stacked it, and would not be called: add hooks "
                "before the learner is made, or pass stacked=False"
            )
        if self.settings and list(map(getitem, self.settings, self.setting_names)) != self.settings_then:
            raise ConfigError(
                "an attribute of a layer's activation was changed after the learner had stacked it: make a new "
                "learner, or pass stacked=False"
            )
        for stack, layer in self.layers:
            stack.check_layer(layer)

    def exchanged(self) -> bool:
        try:
            same = self.parameters == self.parameters_then
        except RuntimeError:
            return True
        return not same or any(held.get(name) is not x for held, name, x in self.single)


def _exchanged() -> ConfigError:
    return ConfigError(
        "a module or a weight was added, removed or exchanged after the learner was made, which would go on with "
        "the old one: make a new learner"
    )


def _kind(weight: Tensor) -> tuple[Any, ...]:
    return weight.dtype, weight.device, weight.shape
