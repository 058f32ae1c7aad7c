"""Notices what has changed in a module since a learner was built from it."""

from __future__ import annotations

from operator import attrgetter, getitem
from typing import Any

from torch import Tensor, nn

from hamlearn.errors import ConfigError
from hamlearn.local.stacked import Stack, module_hooks, settings_of
from hamlearn.local.system import System

_requires_grad = attrgetter("requires_grad")


class Watch:
    """Looks before every step whether the learner's lists of modules and weights are still those of the module.

    Attributes of modules, modes and hooks may change at any time, and the next step sees them. A weight or a
    module that is exchanged, frozen, converted or added would be passed over in silence, and so would all of these
    in layers that are stacked, where the modules themselves are not called. The comparisons run in C.

    Args:
        modules: All modules below the root, and the root.
        system: The learner's weights, in their slots.
    """

    def __init__(self, modules: list[nn.Module], system: System) -> None:
        self._system = system
        self._children = [module._modules for module in modules]
        self._children_then = [dict(held) for held in self._children]
        self._parameters = [module._parameters for module in modules]
        self._parameters_then = [dict(held) for held in self._parameters]
        self._weights = [w for held in self._parameters for w in held.values() if w is not None]
        self._learnable = list(map(_requires_grad, self._weights))
        # Tensors of one entry compare by value; all others, where they are not the same, raise.
        self._single = [
            (held, n, w) for held in self._parameters for n, w in held.items() if w is not None and w.numel() < 2
        ]
        self._stacks = [cell for cell in system.cells if isinstance(cell, Stack)]
        stacked = [m for stack in self._stacks for m in stack.modules]
        self._hooks = [hooks for module in stacked for hooks in module_hooks(module)]
        settings = [(vars(m), n) for m in stacked for n in settings_of(m)]
        self._settings, self._setting_names = [d for d, _ in settings], [n for _, n in settings]
        self._settings_then = list(map(getitem, self._settings, self._setting_names))
        self._layers = [(stack, layer) for stack in self._stacks for layer in range(stack.length)]
        self._turn = 0
        owned = {slot for stack in self._stacks for slot in stack.slots}
        self._apart = [w for slot, w in enumerate(system.theta) if slot not in owned]
        self._kinds = list(map(_kind, self._apart))

    def check(self) -> None:
        """Raise where the module is another than the learner was built from."""
        if self._children != self._children_then or self._exchanged():
            raise ConfigError(
                "a module or a weight was added, removed or exchanged after the learner was made, which would go on "
                "with the old one: make a new learner"
            )
        if list(map(_requires_grad, self._weights)) != self._learnable:
            raise ConfigError(
                "a weight was frozen or set free after the learner was made: make a new learner; to hold weights "
                "still for a while, give them a schedule as beta that is 0 then"
            )
        if list(map(_kind, self._apart)) != self._kinds:
            raise ConfigError(
                "a weight has got another dtype, device or shape since the learner was made (module.to()): convert "
                "the module first, and make the learner afterwards"
            )
        if self._stacks:
            self._check_stacks()

    def _exchanged(self) -> bool:
        try:
            same = self._parameters == self._parameters_then
        except RuntimeError:
            return True
        return not same or any(held[name] is not w for held, name, w in self._single)

    def _check_stacks(self) -> None:
        if any(self._hooks):
            raise ConfigError(
                "a hook was added to a layer after the learner had stacked it, and would not be called: add hooks "
                "before the learner is made, or pass stacked=False"
            )
        if list(map(getitem, self._settings, self._setting_names)) != self._settings_then:
            raise ConfigError(
                "an attribute of a layer's activation was changed after the learner had stacked it: make a new "
                "learner, or pass stacked=False"
            )
        # The memory of every weight of a deep stack would take too long to look at: one layer a step.
        stack, layer = self._layers[self._turn]
        stack.check_layer(layer)
        self._turn = (self._turn + 1) % len(self._layers)


def _kind(weight: Tensor) -> tuple[Any, ...]:
    return weight.dtype, weight.device, weight.shape
