"""Machine code for a GPU is compiled once, kept with its digest, and never taken from a file that was changed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hamlearn.loops import UnsupportedError, nvrtc
from hamlearn.loops.recording import on_device, pure_graph


@pytest.fixture
def compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A compiler that is not there: what it was asked to compile."""
    asked: list[str] = []

    def compile_it(source: str, capability: tuple[int, int]) -> bytes:
        asked.append(source)
        return f"{source} for {capability}".encode()

    monkeypatch.setenv("HAMLEARN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(nvrtc, "_compile", compile_it)
    monkeypatch.setattr(nvrtc, "_version", lambda: "13.0")
    return asked


def test_a_kernel_is_compiled_once_for_each_architecture_and_compiler(
    compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        assert nvrtc.compiled("a", (9, 0)) == b"a for (9, 0)"
        assert nvrtc.compiled("a", (8, 0)) == b"a for (8, 0)"
    assert compiled == ["a", "a"]
    monkeypatch.setattr(nvrtc, "_version", lambda: "13.1")
    nvrtc.compiled("a", (9, 0))
    assert len(compiled) == 3


@pytest.mark.skipif(torch.version.cuda is not None, reason="this PyTorch has CUDA")
def test_a_pytorch_without_cuda_says_so() -> None:
    with pytest.raises(UnsupportedError, match="built without CUDA"):
        nvrtc.library()


def test_what_a_recorded_graph_makes_and_holds_moves_to_a_device() -> None:
    table = torch.arange(3.0)

    def step(x: torch.Tensor) -> list[torch.Tensor]:
        return [x + torch.zeros(3) + torch.arange(3) + table]

    graph = pure_graph(step, [torch.ones(3)])
    (y,) = on_device(graph, torch.device("meta"))(torch.ones(3, device="meta"))
    assert y.device.type == "meta"
    (y,) = graph(torch.ones(3))
    assert torch.equal(y, torch.tensor([1.0, 3.0, 5.0]))
