"""Running a compiled kernel on tensors of a GPU, through the CUDA driver that PyTorch has loaded."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import torch
from torch import Tensor

from hamlearn.loops import nvrtc
from hamlearn.loops.kernel import Kernel
from hamlearn.loops.values import UnsupportedError

_DYNAMIC_SHARED = 8
"""CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES."""
_SHARED_LIMIT = 97
"""CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN."""


def shared_limit(device: torch.device) -> int:
    """Bytes of shared memory that a block of threads may have."""
    found, number = ctypes.c_int(), ctypes.c_int()
    index = torch.cuda.current_device() if device.index is None else device.index
    _check(_driver().cuDeviceGet(ctypes.byref(number), index))
    _check(_driver().cuDeviceGetAttribute(ctypes.byref(found), _SHARED_LIMIT, number))
    return found.value


class CudaLoop:
    """A kernel on a GPU as a loop over steps.

    Args:
        kernel: What to run.
        device: Where its tensors are.
    """

    def __init__(self, kernel: Kernel, device: torch.device) -> None:
        self.kernel = kernel
        # Those on the GPU are read at each call, as the eager step would; numbers on the CPU are copied once.
        self.constants = [tensor if tensor.is_cuda else tensor.to(device) for tensor in kernel.constants]
        self.device = torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
        code = nvrtc.compiled(kernel.source, torch.cuda.get_device_capability(self.device))
        self._context = _context(self.device.index)
        self._module, self._function = ctypes.c_void_p(), ctypes.c_void_p()
        with self._context:
            _check(_driver().cuModuleLoadData(ctypes.byref(self._module), code))
            _check(_driver().cuModuleGetFunction(ctypes.byref(self._function), self._module, b"run"))
            _check(_driver().cuFuncSetAttribute(self._function, _DYNAMIC_SHARED, kernel.shared))

    def __call__(
        self, steps: int, carry: list[Tensor], samples: list[Tensor], constants: list[Tensor], groups: int = 1
    ) -> list[Tensor]:
        """Run `steps` steps; the carry changes in place, and the results are returned, one row per step.

        The kernel is launched on PyTorch's current stream, and the call does not wait for it.
        """
        kernel, device, lanes = self.kernel, self.device, self.kernel.lanes
        results = [
            torch.empty(
                (steps, groups, *shape, lanes) if lanes > 1 else (steps, *shape), dtype=dtype, device=device
            )
            for shape, dtype in kernel.results
        ]
        held = [tensor.detach().contiguous() for tensor in self.constants]
        tensors = [*carry, *samples, *constants, *held, *results]
        for tensor in tensors:
            if tensor.get_device() != device.index or not tensor.is_contiguous():
                raise ValueError(
                    f"a tensor on {tensor.device} of strides {tensor.stride()} cannot enter a loop on {device}: "
                    "move it there, and call contiguous() on it"
                )
        blocks = groups * lanes * kernel.blocks
        size, scratch = kernel.common + blocks * kernel.scratch, None
        if size:
            make = torch.zeros if kernel.common else torch.empty
            scratch = make(size, dtype=torch.uint8, device=device)
        arguments: list[Any] = [
            (ctypes.c_void_p * max(len(tensors), 1))(*[tensor.data_ptr() for tensor in tensors]),
            ctypes.c_int64(steps),
            ctypes.c_int64(groups),
            ctypes.c_void_p(0 if scratch is None else scratch.data_ptr()),
        ]
        places = (ctypes.c_void_p * 4)(*[ctypes.addressof(argument) for argument in arguments])
        stream = ctypes.c_void_p(torch.cuda.current_stream(device).cuda_stream)
        shape = (blocks, 1, 1, kernel.threads, 1, 1, kernel.shared)
        with self._context:
            if kernel.blocks > 1:
                _check(_driver().cuLaunchCooperativeKernel(self._function, *shape, stream, places))
            else:
                _check(_driver().cuLaunchKernel(self._function, *shape, stream, places, None))
        return results


class _Context:
    """The context that PyTorch uses on a device, made current within; another thread may never have touched it."""

    def __init__(self, device: int) -> None:
        # PyTorch's own start comes first, with all that it checks.
        torch.cuda.synchronize(device)
        self.handle, number = ctypes.c_void_p(), ctypes.c_int()
        _check(_driver().cuDeviceGet(ctypes.byref(number), device))
        _check(_driver().cuDevicePrimaryCtxRetain(ctypes.byref(self.handle), number))

    def __enter__(self) -> None:
        _check(_driver().cuCtxPushCurrent_v2(self.handle))

    def __exit__(self, *_: object) -> None:
        _check(_driver().cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p())))


@functools.cache
def _context(device: int) -> _Context:
    return _Context(device)


@functools.cache
def _driver() -> ctypes.CDLL:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise UnsupportedError(f"there is no CUDA driver ({error})") from error


def _check(failed: int) -> None:
    if failed:
        name = ctypes.c_char_p()
        _driver().cuGetErrorName(failed, ctypes.byref(name))
        what = (name.value or b"unknown").decode()
        raise RuntimeError(f"the CUDA driver cannot run a compiled loop: {what} ({failed})")
