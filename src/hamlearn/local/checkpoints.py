"""What a local learner's state is made of: costates, nodes and samples in flight, as named tensors and JSON."""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor, nn

from hamlearn._base.claims import Tensors, number, whole
from hamlearn.engines.owner import Owner
from hamlearn.local.setting import Settings
from hamlearn.orders.local.outer import kept, told
from hamlearn.state.saving import Change


class LocalSnapshot(Settings, Owner):
    """A local learner's state as a value; `LocalLearner` is what users see of it."""

    _engine: Any
    _header_keys = ("t", "updates", "engine")

    def _root(self) -> nn.Module:
        return self._system.wiring.root

    def _setting(self) -> dict[str, Any]:
        system = self._system
        return {
            "hold": self.hold,
            "align": self.align,
            "delay_free": self.delay_free,
            "order": system.order,
            "cells": [list(cell.names) for cell in system.cells],
            "sources": {name: list(sources) for name, sources in system.wiring.sources.items()},
            "outputs": list(system.wiring.outputs),
            "learnable": list(system.names.values()),
        }

    def _own_state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors: dict[str, Tensor] = {}
        self._ticker.take_over()
        for i, omega in enumerate(self._ticker.omega):
            tensors |= told(omega, str(i))
        held, engine = self._engine.saved()
        tensors |= {f"engine/{name}": tensor for name, tensor in held.items()}
        return tensors, {"t": self._ticker.t, "updates": self._ticker.updates, "engine": engine}

    def _own_change(self, left: Tensors, header: dict[str, Any]) -> Change:
        ticker, engine = self._ticker, self._engine
        forms, device = ticker.system.forms(), ticker.system.theta[0].device
        moved = {
            "omega": [kept(left, str(i), form, device) for i, form in enumerate(forms)],
            "t": number(header["t"], "t"),
            "updates": whole(header["updates"], "updates"),
        }
        # Nodes and samples in flight are laid out beside the engine, and looked at there.
        loaded = copy.copy(engine)
        loaded.load(left.under("engine/"), header["engine"])

        def put() -> None:
            vars(ticker).update(moved)
            vars(engine).update(vars(loaded))

        return Change([ticker, engine], put)
