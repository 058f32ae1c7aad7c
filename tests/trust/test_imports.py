"""Imports while a step is recorded: they are not part of it."""

import importlib.abc
import sys

import torch
from torch import nn

import hamlearn as hl


class Finder(importlib.abc.MetaPathFinder):
    """Looks at a global that cannot be compared whenever something is imported, as test runners do."""

    asked = 0

    def find_spec(self, name, path=None, target=None):
        Finder.asked += INCOMPARABLE is not None


class Incomparable:
    def __eq__(self, other):
        raise TypeError("no")

    __hash__ = None


INCOMPARABLE = Incomparable()


class Imports(nn.Module):
    """Imports on its first call, as PyTorch does in places."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(1, 1)

    def forward(self, u):
        import wave

        return self.linear(u) * (wave.WAVE_FORMAT_PCM == 1)


def test_a_finder_of_another_library_does_not_keep_a_step_from_being_compiled(recwarn, monkeypatch):
    for name in ("wave", "chunk"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    finder = Finder()
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    learner = hl.Learner(hl.Network.feedforward(Imports()), nn.functional.mse_loss)
    one = torch.ones(1, 1)
    reports = list(learner.run([hl.Sample(one, one)] * 20, engine="compiled"))
    assert len(reports) == 20
    assert Finder.asked
    assert not [
        str(warning.message) for warning in recwarn if "falls back to the eager engine" in str(warning.message)
    ]
