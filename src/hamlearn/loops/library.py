"""Compiling C source once per machine: shared libraries, kept in the build cache."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor

from hamlearn.loops import blas, build_cache
from hamlearn.loops.program import Program
from hamlearn.loops.values import C_TYPES, UnsupportedError

logger = logging.getLogger("hamlearn")

# gcc's -O3 takes up to twice as long to compile, and makes some steps take twice as long. Of what it adds to -O2,
# steps gain by unswitching and by peeling short loops. Before version 12, -O2 does not vectorise by itself.
GCC_LEVEL = ["-O2", "-ftree-vectorize", "-fvect-cost-model=dynamic", "-fpeel-loops", "-funswitch-loops"]
LEVEL = ["-O3"]
"""For compilers that do not know all of `GCC_LEVEL`."""
# NaN and infinity keep their meaning, since a step is checked by them.
FLAGS = [
    "-march=native",
    "-fPIC",
    "-shared",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=fast",
    "-fopenmp-simd",
]


class Loop:
    """A compiled loop over steps.

    Args:
        program: What to compile; a library that was compiled before, in this process or another, is loaded.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        library = _load(program.source)
        for dtype, c_type in C_TYPES.items():
            if c_type in program.products:
                ctypes.c_void_p.in_dll(library, f"blas_{c_type}").value = blas.address(dtype)
        self.run = library.run
        self.run.argtypes = [*[ctypes.c_int64] * 4, *[ctypes.c_void_p] * 5]
        self.run.restype = None

    def __call__(
        self, steps: int, carry: list[Tensor], samples: list[Tensor], constants: list[Tensor], groups: int = 1
    ) -> list[Tensor]:
        """Run `steps` steps; the carry changes in place, and the results are returned, one row per step.

        Groups of a population do not touch each other: they are shared out over PyTorch's number of threads.
        """
        lanes = self.program.lanes
        results = [
            torch.empty((steps, groups, *shape, lanes) if laned else (steps, *shape), dtype=dtype)
            for shape, dtype, laned in self.program.results
        ]
        # Tensors that the step holds by itself are read as they are now, as the eager step would.
        held = [tensor.detach().contiguous() for tensor in self.program.constants]
        memory = (carry, samples, [*constants, *held], results)
        pointers = [pointers_to(tensors) for tensors in memory]

        def run(first: int, last: int) -> None:
            # Not kept: two threads may run the same loop at once.
            scratch = torch.zeros(self.program.scratch + 64, dtype=torch.uint8)
            self.run(steps, first, last, groups, *pointers, scratch.data_ptr() + -scratch.data_ptr() % 64)

        threads = min(groups, torch.get_num_threads())
        if threads == 1:
            run(0, groups)
        else:
            edges = [groups * part // threads for part in range(threads + 1)]
            others = _threads(threads - 1).map(run, edges[1:-1], edges[2:])
            run(0, edges[1])
            list(others)
        return results


@functools.cache
def _threads(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, thread_name_prefix="hamlearn")


def pointers_to(tensors: list[Tensor]) -> ctypes.Array[ctypes.c_void_p]:
    """Addresses of tensors, as the C function takes them."""
    for tensor in tensors:
        if not tensor.is_contiguous():
            raise ValueError(f"a tensor of strides {tensor.stride()} cannot enter a loop: call contiguous() on it")
    return (ctypes.c_void_p * max(len(tensors), 1))(*(tensor.data_ptr() for tensor in tensors))


def cached(program: Program) -> bool:
    """Whether the library of this program has been compiled before."""
    return _path(_key(program.source)).exists()


@functools.cache
def _load(source: str) -> ctypes.CDLL:
    path = _path(_key(source))
    if path.exists():
        try:
            return ctypes.CDLL(str(path))
        except OSError:
            logger.warning("%s cannot be loaded: compiling it again", path)
    _compile(source, path)
    return ctypes.CDLL(str(path))


def _compile(source: str, path: Path) -> None:
    try:
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            library = Path(folder, "loop.so")
            done = _call_compiler(source, library, *_flags(), *_vector_math())
            if done.returncode:
                raise UnsupportedError(f"{compiler()} failed: {done.stderr.strip()[:500]}")
            library.replace(path)
    except OSError as error:
        raise UnsupportedError(
            f"compiled loops cannot be stored ({error}): set {build_cache.VARIABLE} to a folder with free space"
        ) from error


def _call_compiler(source: str, output: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [*shlex.split(compiler()), "-x", "c", "-", "-o", str(output), *flags, "-lm"]
    return subprocess.run(command, input=source, capture_output=True, text=True, check=False)


@functools.cache
def compiler() -> str:
    """The C compiler: what the variable CC names, or the first of cc, gcc and clang.

    Raises:
        UnsupportedError: If there is none.
    """
    for name in (os.environ.get("CC"), "cc", "gcc", "clang"):
        if name and shutil.which(shlex.split(name)[0]):
            return name
    raise UnsupportedError("no C compiler was found: install gcc or clang, or set CC to the one to use")


@functools.cache
def _vector_math() -> tuple[str, ...]:
    """Flags for the vector functions of glibc 2.35 and later on x86-64; none elsewhere."""
    flags = ("-DVECTOR_MATH", "-lmvec")
    probe = (
        '__attribute__((simd("notinbranch"), const)) double tanh(double);\n'
        "void probe(double* x) { for (int i = 0; i < 64; ++i) x[i] = tanh(x[i]); }\n"
        "int main(void) { double x[64] = {0}; probe(x); return x[0] != 0; }\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "probe")
        done = _call_compiler(probe, program, "-O3", "-march=native", "-fno-math-errno", *flags)
        works = done.returncode == 0 and subprocess.run([program], check=False).returncode == 0
        return flags if works else ()


def _flags() -> list[str]:
    # The owner of gcc is named by it under every name that it is installed as.
    return [*(GCC_LEVEL if "Free Software Foundation" in _version() else LEVEL), *FLAGS]


@functools.cache
def _version() -> str:
    command = [*shlex.split(compiler()), "--version"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


@functools.cache
def _machine() -> str:
    cpu = ""
    info = Path("/proc/cpuinfo")
    if info.exists():
        cpu = next((line for line in info.read_text().splitlines() if line.startswith(("flags", "Features"))), "")
    return "\n".join([_version(), platform.machine(), *platform.libc_ver(), cpu])


def _key(source: str) -> str:
    return hashlib.sha256("\n".join([source, " ".join(_flags()), _machine()]).encode()).hexdigest()


def _path(key: str) -> Path:
    return build_cache.folder() / f"{key[:32]}.so"
