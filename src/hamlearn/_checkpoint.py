"""Checkpoints: one safetensors file with a JSON header, written whole or not at all, never unpickled."""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import json
import os
import re
import types
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save_file
from torch import Tensor

from hamlearn import _files
from hamlearn._claims import Tensors, generator_state, shown
from hamlearn.errors import CheckpointError

FORMAT = "hamlearn-checkpoint-2"
_SLICE = 1 << 22


def write(path: str | os.PathLike[str], tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> None:
    """Write tensors and header, and a digest over all of them; a crash leaves the old file or the new one."""
    path = Path(path)
    try:
        text = json.dumps({"format": FORMAT, **header})
        flat = _apart(tensors)
        metadata = {"hamlearn": text, "sha256": _digest_of(text, flat)}
    except (TypeError, ValueError, RuntimeError, RecursionError) as error:
        raise CheckpointError(
            f"cannot save {path}: {error}. A checkpoint takes dense tensors, and of streams what JSON keeps"
        ) from error
    _files.replace(path, functools.partial(_save, flat, metadata))


def _save(tensors: dict[str, Tensor], metadata: dict[str, str], path: Path) -> None:
    try:
        save_file(tensors, path, metadata)
    except SafetensorError as error:
        # Its message is all that it tells of what the system said.
        code = re.search(r"os error (\d+)", str(error))
        number = int(code[1]) if code else errno.EIO
        raise OSError(number, os.strerror(number)) from error


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and header of a checkpoint; refuses what is truncated, foreign, or not as it was written.

    The tensors lie in memory as they do in the file, where kernels, which round by alignment, should not meet them:
    copy what is kept.
    """
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(f"{path} is not a file: give the path that learner.save() wrote")
    try:
        data = path.read_bytes()
        tensors = load(data)
        metadata = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")]).get("__metadata__") or {}
    except Exception as error:  # whatever a reader of foreign bytes may come upon
        raise CheckpointError(
            f"{path} cannot be read as a checkpoint ({error}): it is truncated or of another kind. "
            "Restore it from a copy, or start anew"
        ) from error
    if "hamlearn" not in metadata:
        raise CheckpointError(f"{path} is a safetensors file but not one that learner.save() wrote")
    text = metadata["hamlearn"]
    try:
        header = json.loads(text)
    except (ValueError, RecursionError):
        header = None
    found = header.get("format") if isinstance(header, dict) else None
    if isinstance(found, str) and found != FORMAT:
        raise CheckpointError(f"{path} has format {found!r}; this version reads {FORMAT!r}")
    if found != FORMAT or metadata.get("sha256") != _digest_of(text, tensors):
        raise CheckpointError(
            f"{path} is not as learner.save() wrote it: its content does not have the digest that stands in it. "
            "Restore it from a copy, or start anew"
        )
    assert isinstance(header, dict)
    return tensors, header


@contextlib.contextmanager
def reading(path: object) -> Iterator[None]:
    """Within, whatever is wrong with the content of a file is a `CheckpointError`."""
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:
        raise CheckpointError(
            f"{path} does not hold what learner.save() writes for this learner: {error}. Nothing was loaded. "
            "Restore the file from a copy, or start anew"
        ) from error


class Restoring:
    """Within, all is done or nothing: whatever ends it early puts everything back, to the bit.

    Args:
        tensors: What is written to in place.
        owners: Objects whose attributes are replaced.
        graphs: Whether somebody holds graphs that lead to the tensors, which must stay valid if all is put back.
    """

    def __init__(self, tensors: Iterable[Tensor], owners: Iterable[object], *, graphs: bool) -> None:
        self._tensors = [(tensor, tensor.detach().clone()) for tensor in tensors]
        self._owners = [(owner, dict(vars(owner))) for owner in owners]
        self._random = random_state()
        self._graphs = graphs

    @torch.no_grad()
    def set(self, tensor: Tensor, value: Tensor) -> None:
        """Write to a tensor."""
        # Through `.data` no graph notices; where there are none to spare, those of others shall.
        (tensor.data if self._graphs else tensor).copy_(value)

    def __enter__(self) -> Restoring:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            return
        for tensor, value in self._tensors:
            tensor.data.copy_(value)
        for owner, attributes in self._owners:
            vars(owner).clear()
            vars(owner).update(attributes)
        restore_random_state(self._random)


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors on the CPU, dense, none of them in another one's memory."""
    seen: set[int] = set()
    flat = {}
    for name, given in tensors.items():
        tensor = given.detach().cpu().contiguous()
        place = tensor.untyped_storage().data_ptr()
        if place in seen or tensor.untyped_storage().nbytes() != tensor.nbytes:
            tensor = tensor.clone()
        seen.add(place)
        flat[name] = tensor
    return flat


def _digest_of(text: str, tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over the header and each tensor's name, dtype, shape and content, in the order of their names."""
    total = hashlib.sha256(text.encode())
    large: list[memoryview] = []
    for name in sorted(tensors):
        tensor = tensors[name]
        total.update(f"\n{len(name)} {name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        content = tensor.reshape(-1).view(torch.uint8).numpy().data
        if len(content) < _SLICE:
            total.update(content)
        else:
            large += [content[start : start + _SLICE] for start in range(0, len(content), _SLICE)]
    if large:
        # Slice by slice on all cores: hashing would else take longer than reading the file.
        with ThreadPoolExecutor() as pool:
            for digest in pool.map(lambda part: hashlib.sha256(part).digest(), large):
                total.update(digest)
    return total.hexdigest()


def require_equal(path: object, what: str, saved: Any, current: Any, remedy: str) -> None:
    """Raise if the checkpoint and the learner disagree, naming the first difference."""
    if saved == current:
        return
    if isinstance(saved, dict) and isinstance(current, dict):
        for key in sorted(saved.keys() | current.keys()):
            if saved.get(key) != current.get(key):
                what, saved, current = f"{what} {key!r}", saved.get(key), current.get(key)
                break
    raise CheckpointError(
        f"{path} was saved with {what} = {shown(saved)}, this learner has {shown(current)}: {remedy}"
    )


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


def checked_random_state(tensors: Tensors) -> dict[str, Tensor]:
    """The states that `random_state` told, taken out of a file."""
    states = {"rng/cpu": generator_state(tensors.take("rng/cpu"), "the tensor 'rng/cpu'", "cpu")}
    for index, name in enumerate(tensors.counted("rng/cuda/")):
        there = torch.cuda.is_available() and index < torch.cuda.device_count()
        device = f"cuda:{index}" if there else None
        states[name] = generator_state(tensors.take(name), f"the tensor {name!r}", device)
    return states


def restore_random_state(tensors: Mapping[str, Tensor]) -> None:
    """Put PyTorch's random number generators back."""
    torch.set_rng_state(tensors["rng/cpu"])
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        if f"rng/cuda/{index}" in tensors:
            torch.cuda.set_rng_state(tensors[f"rng/cuda/{index}"], index)
