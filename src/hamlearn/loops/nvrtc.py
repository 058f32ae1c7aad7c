"""Compiling CUDA source at run time, with the compiler library that PyTorch ships, and keeping what came out.

NVRTC is called through `ctypes`: a dozen functions of a C interface that NVIDIA keeps stable. PyTorch's own way to
it, `torch.cuda._compile_kernel`, is private, and CuPy or `cuda-python` would be one more thing to install that has
to match the CUDA version of PyTorch. The library that is loaded is the one PyTorch links to, so it always does.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import tempfile
from pathlib import Path
from typing import Any

import torch

from hamlearn.loops import build_cache
from hamlearn.loops.prelude import CUDA_HEAD
from hamlearn.loops.values import UnsupportedError

logger = logging.getLogger("hamlearn")
OPTIONS = ["--std=c++17", "--fmad=true"]


def compiled(source: str, capability: tuple[int, int]) -> bytes:
    """Machine code of a kernel for GPUs of a compute capability; compiled once per machine.

    Raises:
        UnsupportedError: If there is no compiler, or it does not compile the source.
    """
    path = _path(_key(source, capability))
    if path.exists():
        return path.read_bytes()
    logger.warning("compiling a step into a CUDA kernel: it takes a moment, and is kept for the next time")
    code = _compile(source, capability)
    try:
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            made = Path(folder, "kernel.cubin")
            made.write_bytes(code)
            made.replace(path)
    except OSError as error:
        raise UnsupportedError(
            f"compiled loops cannot be stored ({error}): set {build_cache.VARIABLE} to a folder with free space"
        ) from error
    return code


@functools.cache
def library() -> ctypes.CDLL:
    """The compiler that belongs to this PyTorch.

    Raises:
        UnsupportedError: If there is none.
    """
    cuda = torch.version.cuda
    if cuda is None:
        raise UnsupportedError("this PyTorch was built without CUDA")
    # PyTorch's own link to NVRTC finds it wherever this PyTorch expects it; else the system's, by its version.
    linked = Path(torch.__file__).with_name("lib") / "libcaffe2_nvrtc.so"
    reasons = []
    for name in (str(linked), f"libnvrtc.so.{cuda.split('.')[0]}"):
        try:
            found = ctypes.CDLL(name)
            found.nvrtcCompileProgram.restype = ctypes.c_int
        except (OSError, AttributeError) as error:
            reasons.append(str(error))
        else:
            return found
    raise UnsupportedError(f"the CUDA compiler of PyTorch was not found ({'; '.join(reasons)})")


def _compile(source: str, capability: tuple[int, int]) -> bytes:
    nvrtc, program = library(), ctypes.c_void_p()
    text = (CUDA_HEAD + source).encode()
    _check(nvrtc.nvrtcCreateProgram(ctypes.byref(program), text, b"loop.cu", 0, None, None), "make a program")
    try:
        options = [option.encode() for option in [*OPTIONS, _architecture(capability)]]
        failed = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
        if failed:
            log = _text(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program)
            raise UnsupportedError(f"NVRTC failed: {log.decode(errors='replace').strip()[:500]}")
        return _text(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _text(size_of: Any, read: Any, program: ctypes.c_void_p) -> bytes:
    size = ctypes.c_size_t()
    _check(size_of(program, ctypes.byref(size)), "tell a size")
    buffer = ctypes.create_string_buffer(size.value)
    _check(read(program, buffer), "return a result")
    return buffer.raw


def _check(failed: int, what: str) -> None:
    if failed:
        raise UnsupportedError(f"NVRTC could not {what}: error {failed}")


def _architecture(capability: tuple[int, int]) -> str:
    return f"--gpu-architecture=sm_{capability[0]}{capability[1]}"


@functools.cache
def _version() -> str:
    major, minor = ctypes.c_int(), ctypes.c_int()
    _check(library().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)), "tell its version")
    return f"{major.value}.{minor.value}"


def _key(source: str, capability: tuple[int, int]) -> str:
    parts = [CUDA_HEAD, source, *OPTIONS, _architecture(capability), _version()]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _path(key: str) -> Path:
    return build_cache.folder() / f"{key[:32]}.cubin"
