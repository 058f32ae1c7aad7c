"""Compiled loops are kept, shared between processes, and safe to run from several threads."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from hamlearn.loops import Loop, Program, UnsupportedError, build_cache, cached, library, translate
from hamlearn.loops.recording import pure_graph

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
    monkeypatch.setenv("HAMLEARN_CACHE_DIR", str(tmp_path))
    return tmp_path / "loops"


def test_processes_share_what_one_has_compiled(folder: Path) -> None:
    program = small(0.5)
    assert not cached(program)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT]
    together = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=300)[0].split() for process in together]
    assert said[0] == said[1]
    assert said[0][0] == "True"
    assert [path.suffix for path in folder.iterdir()] == [".so"]
    assert cached(program)
    x = torch.zeros(400)
    Loop(program)(2, [x], [torch.ones(2, 400)], [])
    assert x.sum().item() == float(said[0][1])


def test_a_machine_without_a_compiler_is_told_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = small(0.0625)
    monkeypatch.setenv("CC", "/nonexistent")
    monkeypatch.setenv("PATH", "")
    for name in ("compiler", "_version", "_machine"):
        monkeypatch.setattr(library, name, getattr(library, name).__wrapped__)
    with pytest.raises(UnsupportedError, match="no C compiler was found: install gcc or clang, or set CC"):
        Loop(program)
    with pytest.raises(UnsupportedError, match="no C compiler was found"):
        cached(program)


def test_cc_may_name_a_compiler_with_flags(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", f"{library.compiler()} -g0")
    monkeypatch.setattr(library, "compiler", library.compiler.__wrapped__)
    Loop(small(0.03125))


def run(loop: Loop) -> torch.Tensor:
    x = torch.ones(400)
    loop(1, [x], [torch.ones(1, 400)], [])
    return x


def test_a_folder_that_cannot_be_had_is_told_and_the_loop_runs_all_the_same(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder.parent / "file").touch()
    monkeypatch.setenv("HAMLEARN_CACHE_DIR", str(folder.parent / "file" / "below"))
    with pytest.warns(RuntimeWarning, match="for this process only: .*file.*Set HAMLEARN_CACHE_DIR"):
        loop = Loop(small(0.75))
    torch.testing.assert_close(run(loop), torch.full((400,), 1.75).tanh())


def test_libraries_are_kept_in_a_folder_that_is_closed_to_others(folder: Path) -> None:
    Loop(small(0.6875))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert folder.stat().st_uid == os.geteuid()


@pytest.mark.parametrize(
    ("chosen", "xdg", "place"),
    [("/a", "/b", "/a/loops"), ("", "/b", "/b/hamlearn/loops"), ("", "b", "/home/.cache/hamlearn/loops")],
)
def test_the_folder_follows_the_variables(
    chosen: str, xdg: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home")
    assert build_cache._place(chosen, xdg) == Path(place)


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o1777])
def test_a_folder_that_others_can_write_to_is_not_used(folder: Path, mode: int) -> None:
    program = small(0.625)
    folder.mkdir()
    folder.chmod(mode)
    with pytest.warns(RuntimeWarning, match=rf"can be written to by other users \(mode {mode:o}\)"):
        path = library._path(library._key(program.source))
    assert path.parent != folder
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_folder_that_another_user_made_first_is_not_used(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir(mode=0o700)
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.warns(RuntimeWarning, match=f"belongs to another user, {owner}"):
        path = library._path("key")
    assert path.parent != folder


@pytest.mark.parametrize("mode", [0o777, 0o757])
def test_a_folder_below_one_that_others_can_write_to_is_not_used(
    tmp_path: Path, mode: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "open" / "mine").mkdir(parents=True)
    (tmp_path / "open").chmod(mode)
    monkeypatch.setenv(build_cache.VARIABLE, str(tmp_path / "open" / "mine"))
    with pytest.warns(RuntimeWarning, match=rf"open can be written to by other users \(mode {mode:o}\)"):
        path = build_cache.folder()
    assert tmp_path not in path.parents
    assert stat.S_IMODE(path.stat().st_mode) == 0o700


def test_a_folder_below_a_sticky_one_or_one_of_the_users_own_group_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sticky" / "grouped").mkdir(parents=True)
    (tmp_path / "sticky").chmod(0o1777)
    (tmp_path / "sticky" / "grouped").chmod(0o775)
    monkeypatch.setenv(build_cache.VARIABLE, str(tmp_path / "sticky" / "grouped"))
    monkeypatch.setattr(build_cache, "_is_private_group", lambda group: True)
    assert build_cache.folder() == tmp_path / "sticky" / "grouped" / "loops"
    monkeypatch.setattr(build_cache, "_is_private_group", lambda group: False)
    with pytest.warns(RuntimeWarning, match="grouped can be written to"):
        build_cache.folder()


def test_a_link_into_a_folder_of_others_is_followed_before_it_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "open" / "theirs").mkdir(parents=True)
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "link").symlink_to(tmp_path / "open" / "theirs")
    monkeypatch.setenv(build_cache.VARIABLE, str(tmp_path / "link"))
    with pytest.warns(RuntimeWarning, match="open can be written to"):
        build_cache.folder()


def test_without_a_home_directory_loops_are_compiled_into_a_private_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv(build_cache.VARIABLE, raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    with pytest.warns(RuntimeWarning, match="this user has no home directory"):
        path = build_cache.folder()
    assert stat.S_IMODE(path.stat().st_mode) == 0o700


def test_a_library_that_cannot_be_loaded_is_compiled_again(folder: Path) -> None:
    program = small(0.5625)
    folder.mkdir(mode=0o700)
    library._path(library._key(program.source)).write_bytes(b"cut short")
    torch.testing.assert_close(run(Loop(program)), torch.full((400,), 1.5625).tanh())


def test_a_compiler_that_refuses_leaves_nothing_behind(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = small(0.25)
    monkeypatch.setattr(library, "FLAGS", ["-not-a-flag"])
    with pytest.raises(UnsupportedError, match="failed"):
        Loop(program)
    assert not cached(program)
    assert not list(folder.iterdir())


def test_a_compiler_that_is_not_gcc_is_given_no_flags_of_gccs_own(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "_version", lambda: "clang version 19.1.0")
    monkeypatch.setattr(library, "GCC_LEVEL", ["-not-a-flag"])
    torch.testing.assert_close(run(Loop(small(0.4375))), torch.full((400,), 1.4375).tanh())


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
