"""Checkpoints: one safetensors file with a JSON header, written whole or not at all, never unpickled."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors.torch import load
from torch import Tensor

from hamlearn import _files
from hamlearn._claims import Tensors, generator_state, shown
from hamlearn.errors import CheckpointError

FORMAT = "hamlearn-checkpoint-3"
_SLICE = 1 << 20
_NAMES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint64: "U64", torch.uint32: "U32",
    torch.uint16: "U16", torch.uint8: "U8", torch.bool: "BOOL", torch.complex64: "C64",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
}  # fmt: skip
Described = tuple[torch.dtype, list[int]]


def write(path: str | os.PathLike[str], tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> None:
    """Write tensors and header, and a digest over all of them; a crash leaves the old file or the new one."""
    path = Path(path)
    try:
        text = json.dumps({"format": FORMAT, **header})
        contents = {name: _content(name, tensor) for name, tensor in tensors.items()}
        described = {name: _described(tensor) for name, tensor in tensors.items()}
        head = _head(text, described, contents)
    except (TypeError, ValueError, RuntimeError, RecursionError) as error:
        raise CheckpointError(
            f"cannot save {path}: {error}. A checkpoint takes dense tensors, and of streams what JSON keeps"
        ) from error

    def put(file: BinaryIO) -> None:
        file.write(head)
        for name in _placed(described):
            file.write(contents[name])

    _files.replace(path, put)


def _head(text: str, described: Mapping[str, Described], contents: Mapping[str, memoryview]) -> bytes:
    """What stands before the tensors: the format's own header, which says where each of them lies."""
    digest = _digest_of(text, described, contents)
    about: dict[str, Any] = {"__metadata__": {"hamlearn": text, "sha256": digest}}
    start = 0
    for name in _placed(described):
        dtype, shape = described[name]
        end = start + len(contents[name])
        about[name] = {"dtype": _NAMES[dtype], "shape": shape, "data_offsets": [start, end]}
        start = end
    head = json.dumps(about, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    return len(head).to_bytes(8, "little") + head


def _placed(described: Mapping[str, Described]) -> list[str]:
    """Names in the order of the file: the widest numbers first, so that all of them are aligned."""
    return sorted(described, key=lambda name: (-described[name][0].itemsize, name))


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and header of a checkpoint; refuses what is truncated, foreign, or not as it was written.

    The tensors lie in memory as they do in the file, and kernels round by alignment: copy what is kept.
    """
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(f"{path} is not a file: give the path that learner.save() wrote")
    try:
        data = path.read_bytes()
        tensors = load(data)
        metadata = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")]).get("__metadata__") or {}
        text = metadata.get("hamlearn", "")
        contents = {name: _content(name, tensor) for name, tensor in tensors.items()}
        described = {name: _described(tensor) for name, tensor in tensors.items()}
        digest = _digest_of(text, described, contents)
    except Exception as error:  # whatever a reader of foreign bytes may come upon
        raise CheckpointError(
            f"{path} cannot be read as a checkpoint ({error}): it is truncated or of another kind. "
            "Restore it from a copy, or start anew"
        ) from error
    if "hamlearn" not in metadata:
        raise CheckpointError(f"{path} is a safetensors file but not one that learner.save() wrote")
    try:
        header = json.loads(text)
    except (ValueError, RecursionError):
        header = None
    found = header.get("format") if isinstance(header, dict) else None
    if isinstance(found, str) and found != FORMAT:
        raise CheckpointError(f"{path} has format {found!r}; this version reads {FORMAT!r}")
    if found != FORMAT or metadata.get("sha256") != digest:
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


def _content(name: str, tensor: Tensor) -> memoryview:
    """The bytes of a tensor, in its own memory where that can be."""
    if tensor.layout is not torch.strided or tensor.dtype not in _NAMES:
        raise ValueError(f"{name} is a tensor of layout {tensor.layout} and type {tensor.dtype}")
    flat = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    if flat.numel() == 1:
        # One entry counts as contiguous whatever its stride, but only a stride of 1 can be looked at as bytes.
        flat = flat.as_strided((1,), (1,))
    content: memoryview = flat.view(torch.uint8).numpy().data
    return content


def _described(tensor: Tensor) -> Described:
    return tensor.dtype, list(tensor.shape)


def _digest_of(text: str, described: Mapping[str, Described], contents: Mapping[str, memoryview]) -> str:
    """SHA-256 over the header and each tensor's name, dtype, shape and content, in the order of their names."""
    total = hashlib.sha256(text.encode())
    large: list[memoryview] = []
    for name in sorted(described):
        dtype, shape = described[name]
        total.update(f"\n{len(name)} {name} {dtype} {shape}\n".encode())
        content = contents[name]
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
