"""Checkpoints: one safetensors file with a JSON header, written whole or not at all, never unpickled."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import tempfile
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from hamlearn.errors import CheckpointError

FORMAT = "hamlearn-checkpoint-1"


def write(path: str | os.PathLike[str], tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> None:
    """Write to a temporary file beside `path`, force it to disk, and rename: a crash leaves old or new, whole."""
    path = Path(path)
    if not path.parent.is_dir():
        raise CheckpointError(f"cannot save {path}: there is no folder {path.parent}. Create it first")
    text = json.dumps({"format": FORMAT, **header})
    flat = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        save_file(flat, temporary, metadata={"hamlearn": text})
        _sync(temporary)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync(path.parent)


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and header of a checkpoint; refuses what is truncated or foreign."""
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(f"{path} is not a file: give the path that learner.save() wrote")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            # Copies, because the file's own memory is not aligned, and kernels round by alignment.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{path} cannot be read as a checkpoint ({error}): it is truncated or of another kind. "
            "Restore it from a copy, or start anew"
        ) from error
    try:
        header = json.loads(metadata["hamlearn"])
    except (KeyError, json.JSONDecodeError) as error:
        raise CheckpointError(f"{path} is a safetensors file but not one that learner.save() wrote") from error
    if header.get("format") != FORMAT:
        raise CheckpointError(f"{path} has format {header.get('format')!r}; this version reads {FORMAT!r}")
    return tensors, header


def require_equal(path: object, what: str, saved: Any, current: Any, remedy: str) -> None:
    """Raise if the checkpoint and the learner disagree, naming the first difference."""
    if saved == current:
        return
    if isinstance(saved, dict) and isinstance(current, dict):
        for key in sorted(saved.keys() | current.keys()):
            if saved.get(key) != current.get(key):
                what, saved, current = f"{what} {key!r}", saved.get(key), current.get(key)
                break
    raise CheckpointError(f"{path} was saved with {what} = {saved!r}, this learner has {current!r}: {remedy}")


def layout(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Name, shape and dtype of each tensor, to tell one model from another."""
    return {name: f"{tensor.dtype}{list(tensor.shape)}" for name, tensor in tensors.items()}


def identity(value: Any) -> Any:
    """A JSON description that two equal settings share: of numbers, schedules, tensors and mappings."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Tensor):
        data = value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        return f"tensor {value.dtype}{list(value.shape)} {_digest(data)}"
    if isinstance(value, Mapping):
        return {str(key): identity(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [identity(item) for item in value]
    if isinstance(value, functools.partial):
        return {"partial": identity([value.func, value.args, value.keywords])}
    if isinstance(value, types.MethodType):
        return {"method": identity([value.__func__, value.__self__])}
    if isinstance(value, types.FunctionType):
        closed = [cell.cell_contents for cell in value.__closure__ or ()]
        parts = repr([_code(value.__code__), identity([closed, value.__defaults__, value.__kwdefaults__])])
        return f"function {value.__module__}.{value.__qualname__} {_digest(parts.encode())}"
    if isinstance(value, types.BuiltinFunctionType):
        return f"builtin {value.__module__}.{value.__qualname__}"
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if not hasattr(value, "__dict__"):
        return {"type": kind, "repr": repr(value)}
    return {"type": kind, **identity(vars(value))}


def _code(code: types.CodeType) -> list[Any]:
    inner = [_code(item) if isinstance(item, types.CodeType) else repr(item) for item in code.co_consts]
    return [code.co_code, code.co_names, inner]


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def random_state() -> dict[str, Tensor]:
    """State of PyTorch's random number generators."""
    states = {"rng/cpu": torch.get_rng_state()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states |= {f"rng/cuda/{i}": s for i, s in enumerate(torch.cuda.get_rng_state_all())}
    return states


def restore_random_state(tensors: Mapping[str, Tensor]) -> None:
    """Put PyTorch's random number generators back."""
    torch.set_rng_state(tensors["rng/cpu"])
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        if f"rng/cuda/{index}" in tensors:
            torch.cuda.set_rng_state(tensors[f"rng/cuda/{index}"], index)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
