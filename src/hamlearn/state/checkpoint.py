"""Checkpoints: one safetensors file with a JSON header, written whole or not at all, never unpickled."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load
from torch import Tensor

from hamlearn._base.claims import shown
from hamlearn.errors import CheckpointError
from hamlearn.state import files

FORMAT = "hamlearn-checkpoint-3"
STATE = "the state"
"""What is told of as the source where there is no file."""
_SLICE = 1 << 20
_NAMES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint64: "U64", torch.uint32: "U32",
    torch.uint16: "U16", torch.uint8: "U8", torch.bool: "BOOL", torch.complex64: "C64",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
}  # fmt: skip
Described = tuple[torch.dtype, list[int]]


def value(tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> dict[str, Any]:
    """Tensors and header as one value that shares no memory with anything."""
    copies = {name: tensor.detach().clone() for name, tensor in tensors.items()}
    return _whole(copies, {"format": FORMAT, **copy.deepcopy(dict(header))})


def _whole(tensors: dict[str, Tensor], about: dict[str, Any]) -> dict[str, Any]:
    return {"tensors": tensors, "about": about, "layout": layout(tensors)}


def parts(state: Any) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and header of what `value` made, for somebody to take copies of; refuses anything else."""
    fits = isinstance(state, dict) and set(state) == {"tensors", "about", "layout"}
    tensors, about = (state["tensors"], state["about"]) if fits else (None, None)
    if not isinstance(tensors, dict) or not isinstance(about, dict):
        found = sorted(map(str, state)) if isinstance(state, dict) else shown(state)
        raise CheckpointError(f"{found} is no state: give what learner.state_dict() returned")
    for name, tensor in tensors.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise CheckpointError(f"{shown(name)} of the state is a {type(tensor).__name__}: tensors belong there")
    if about.get("format") != FORMAT:
        raise CheckpointError(f"the state has format {shown(about.get('format'))}; this version takes {FORMAT!r}")
    return {name: tensor.detach() for name, tensor in tensors.items()}, copy.deepcopy(about)


def require_whole(state: Mapping[str, Any]) -> None:
    """Refuse a state that has lost a tensor on its way, or has it in another form, where nothing else is missing.

    A file has a digest. A value that lacks, say, a costate in flight would be taken up, and lead elsewhere.
    """
    told, found = state["layout"], layout(state["tensors"])
    remedy = "Nothing was loaded. Hand on all that learner.state_dict() returned"
    if not isinstance(told, dict):
        raise CheckpointError(f"the state's layout is {shown(told)}. {remedy}")
    for name in sorted({*told} | {*found}):
        if told.get(name) != found.get(name):
            raise CheckpointError(
                f"{name!r} of the state is {shown(found.get(name))}, and was {shown(told.get(name))}. {remedy}"
            )


def write(path: str | os.PathLike[str], tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> None:
    """Write tensors and header, and a digest over all of them; a crash leaves the old file or the new one."""
    path = Path(path)
    pieces = _pieces(f"cannot save {path}", tensors, {"format": FORMAT, **header})
    files.replace(path, lambda file: file.writelines(pieces))


def to_bytes(state: Any) -> bytes:
    """A state as a file would hold it."""
    return b"".join(_pieces("cannot write the state down", *parts(state)))


def from_bytes(data: bytes) -> dict[str, Any]:
    """The state that `to_bytes` wrote down."""
    tensors, about = _parsed("what was written down", data)
    return _whole({name: tensor.clone() for name, tensor in tensors.items()}, about)


def _pieces(failed: str, tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> list[Any]:
    """The bytes of a file, part by part."""
    try:
        text = json.dumps(header)
        contents = {name: _content(name, tensor) for name, tensor in tensors.items()}
        described = {name: _described(tensor) for name, tensor in tensors.items()}
        return [_head(text, described, contents), *(contents[name] for name in _placed(described))]
    except (TypeError, ValueError, RuntimeError, RecursionError) as error:
        raise CheckpointError(
            f"{failed}: {error}. A checkpoint takes dense tensors, and of streams what JSON keeps"
        ) from error


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
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error}): see to its permissions, or start anew") from error
    return _parsed(path, data)


def _parsed(path: object, data: bytes) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
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
def reading(source: object) -> Iterator[None]:
    """Within, whatever is wrong with the content of a file, or of a state, is a `CheckpointError`."""
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:
        if source is STATE:
            made, remedy = "learner.state_dict() returns", "Take it from a learner of the same kind"
        else:
            made, remedy = "learner.save() writes", "Restore the file from a copy"
        raise CheckpointError(
            f"{source} does not hold what {made} for this learner: {error}. Nothing was loaded. {remedy}, or "
            "start anew"
        ) from error


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
