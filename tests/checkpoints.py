"""Checkpoints taken apart and put together, and learners compared by all that a checkpoint holds."""

from __future__ import annotations

import json
from typing import Any

import torch
from safetensors.torch import load

from hamlearn.state import checkpoint

Parts = tuple[dict[str, Any], dict[str, torch.Tensor]]


def parse(data: bytes) -> Parts:
    """Header and tensors of a whole checkpoint, in the same order every time."""
    raw = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    header = json.loads(json.loads(raw["__metadata__"]["hamlearn"])["header"])
    return header, dict(sorted(load(data).items()))


class Watch:
    """Looks whether a learner is as it was."""

    def __init__(self, learner: Any) -> None:
        self.learner = learner

    def look(self) -> str:
        """Equal if nothing has changed."""
        state = self.learner.state_dict()
        return checkpoint._digest(json.dumps(state["about"]), state["tensors"])
