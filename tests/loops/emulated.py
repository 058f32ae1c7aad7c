"""Kernels for a GPU, run where there is none: their very text, with every thread a context of its own."""

from __future__ import annotations

import ctypes
import functools
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from hamlearn.loops import backends, translate_to_cuda
from hamlearn.loops.kernel import Kernel

HEADER = Path(__file__).with_name("emulated.hpp")
MAIN = """
static Given given_now;
static int64_t steps_now, groups_now;
static unsigned char* scratch_now;
static void all_steps() {{ run(given_now, steps_now, groups_now, scratch_now); }}
extern "C" int go(void** at, int64_t steps, int64_t groups, unsigned char* scratch, int blocks, int order) {{
    memcpy(given_now.at, at, sizeof(given_now.at));
    steps_now = steps, groups_now = groups, scratch_now = scratch;
    emulated::memory_size = {shared} / 64 * 64 + 64;
    unsigned char* memory = (unsigned char*)malloc(emulated::memory_size * {together} + 64);
    emulated::memory = memory + (64 - (uintptr_t)memory % 64);
    int failed = 0;
    for (int block = 0; block < blocks; block += {together}) {{
        memset(emulated::memory, 0xff, emulated::memory_size * {together});
        failed |= emulated::run_blocks({threads}, {together}, order, block, all_steps);
    }}
    free(memory);
    return failed;
}}
"""


class Emulated:
    """A kernel as a loop for tensors on the CPU.

    Args:
        kernel: What to run.
        order: Who goes first between two barriers: 0, the first thread; 1, the last one; else, at random.
    """

    def __init__(self, kernel: Kernel, order: int = 1) -> None:
        self.kernel, self.order = kernel, order
        text = f"{HEADER.read_text()}\n{kernel.source}\n"
        self._go = _load(
            text + MAIN.format(shared=kernel.shared, threads=kernel.threads, together=kernel.blocks)
        ).go

    def __call__(
        self, steps: int, carry: list[Tensor], samples: list[Tensor], constants: list[Tensor], groups: int = 1
    ) -> list[Tensor]:
        """Run `steps` steps, as a loop in C does; results and working memory begin as what no step may read."""
        lanes = self.kernel.lanes
        results = [
            _poisoned((steps, groups, *shape, lanes) if lanes > 1 else (steps, *shape), dtype)
            for shape, dtype in self.kernel.results
        ]
        tensors = [*carry, *samples, *constants, *self.kernel.constants, *results]
        assert all(tensor.is_contiguous() for tensor in tensors)
        pointers = (ctypes.c_void_p * max(len(tensors), 1))(*(tensor.data_ptr() for tensor in tensors))
        blocks = groups * lanes * self.kernel.blocks
        size = self.kernel.common + blocks * self.kernel.scratch
        scratch = torch.full((size + 64,), 255, dtype=torch.uint8)
        place = ctypes.c_void_p(scratch.data_ptr() + -scratch.data_ptr() % 64)
        sizes = (ctypes.c_int64(steps), ctypes.c_int64(groups))
        assert self._go(pointers, *sizes, place, blocks, self.order) == 0, (
            "threads wait for others that never come"
        )
        return results


class InThreads(backends.InC):
    """In place of `backends.InC`: learners on the CPU take the kernels that they would take on a GPU."""

    def __init__(self, graph: Any, kinds: Any, laned: Any, lanes: int) -> None:
        self.lanes, self.loop = lanes, Emulated(translate_to_cuda(graph, kinds, laned, lanes, 64), 3)


def _poisoned(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.full(shape, float("nan") if dtype.is_floating_point else 77, dtype=dtype)


@functools.cache
def _load(text: str) -> ctypes.CDLL:
    if shutil.which("g++") is None:
        pytest.skip("needs g++, which runs kernels for GPUs as C++: there is none on this machine")
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "kernel.so")
        command = ["g++", "-x", "c++", "-", "-std=c++17", "-O0", "-w", "-fPIC", "-shared", "-o", str(library)]
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[:2000]
        return ctypes.CDLL(str(library))
