"""Compiled loops are kept, shared between processes, and safe to run from several threads."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from hamlearn.compiled.graphs import pure_graph
from hamlearn.loops import Loop, Program, UnsupportedError, cached, library, translate

SCRIPT = """
import torch
from tests.loops.test_library import small
from hamlearn.loops import Loop, cached
program = small(0.5)
x = torch.zeros(400)
Loop(program)(2, [x], [torch.ones(2, 400)], [])
print(cached(program), x.sum().item())
"""


def small(name: float) -> Program:
    graph = pure_graph(lambda x, u: [(x + u * name).tanh(), x.sum()], [torch.zeros(400), torch.zeros(400)])
    return translate(graph, ["carry", "sample"], [False, False])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    return tmp_path


def test_processes_share_what_one_has_compiled(folder: Path) -> None:
    program = small(0.5)
    assert not cached(program)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT]
    together = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=300)[0].split() for process in together]
    assert said[0] == said[1]
    assert said[0][0] == "True"
    assert len(list((folder / "hamlearn").iterdir())) == 1
    assert cached(program)
    x = torch.zeros(400)
    Loop(program)(2, [x], [torch.ones(2, 400)], [])
    assert x.sum().item() == float(said[0][1])


def test_a_machine_without_a_compiler_is_told_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = small(0.0625)
    monkeypatch.setenv("CC", "/nonexistent")
    monkeypatch.setenv("PATH", "")
    for name in ("compiler", "_machine"):
        monkeypatch.setattr(library, name, getattr(library, name).__wrapped__)
    with pytest.raises(UnsupportedError, match="no C compiler was found: install gcc or clang, or set CC"):
        Loop(program)
    with pytest.raises(UnsupportedError, match="no C compiler was found"):
        cached(program)


def test_cc_may_name_a_compiler_with_flags(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", f"{library.compiler()} -g0")
    monkeypatch.setattr(library, "compiler", library.compiler.__wrapped__)
    Loop(small(0.03125))


def test_a_missing_cache_folder_is_told_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "file").touch()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder / "file" / "below"))
    with pytest.raises(UnsupportedError, match="set TORCHINDUCTOR_CACHE_DIR"):
        Loop(small(0.75))


def test_a_damaged_library_is_compiled_again(folder: Path) -> None:
    program = small(0.125)
    path = library._path(program.source)
    path.write_bytes(b"not a library")
    x = torch.ones(400)
    Loop(program)(1, [x], [torch.ones(1, 400)], [])
    torch.testing.assert_close(x, torch.full((400,), 1.125).tanh())


def test_a_compiler_that_refuses_leaves_nothing_behind(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = small(0.25)
    monkeypatch.setattr(library, "FLAGS", ["-not-a-flag"])
    with pytest.raises(UnsupportedError, match="failed"):
        Loop(program)
    assert not cached(program)
    assert not list((folder / "hamlearn").iterdir())


def test_vector_functions_are_not_needed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_vector_math", tuple)
    x = torch.full((400,), 0.3)
    Loop(small(0.375))(3, [x], [torch.zeros(3, 400)], [])
    torch.testing.assert_close(x, torch.full((400,), 0.3).tanh().tanh().tanh())


def test_a_tensor_that_is_not_contiguous_is_refused() -> None:
    with pytest.raises(ValueError, match="contiguous"):
        Loop(small(0.875))(1, [torch.zeros(400)], [torch.zeros(400, 2).t()[:1]], [])
    with pytest.raises(ValueError, match="contiguous"):
        Loop(small(0.875))(1, [torch.zeros(400, 2)[:, 0]], [torch.zeros(1, 400)], [])


def test_threads_may_run_the_same_loop() -> None:
    graph = pure_graph(
        lambda x, u: [((x @ x).tanh() @ x + u).tanh(), (x @ u).exp().sum()],
        [torch.zeros(20, 20), torch.zeros(20, 20)],
    )
    loop = Loop(translate(graph, ["carry", "sample"], [False, False]))

    def run(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        x = torch.rand(20, 20, generator=generator)
        (result,) = loop(500, [x], [torch.rand(500, 20, 20, generator=generator)], [])
        return x, result

    alone = [run(seed) for seed in range(8)]
    with ThreadPoolExecutor(4) as pool:
        for (x, result), (y, other) in zip(alone, pool.map(run, range(8)), strict=True):
            assert torch.equal(x, y)
            assert torch.equal(result, other)
