"""Checkpoints: one safetensors file with a JSON header and a digest, whole or absent, never unpickled."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load
from safetensors.torch import save as to_safetensors
from torch import Tensor

from hamlearn.errors import CheckpointError, shown
from hamlearn.state import files

FORMAT = "hamlearn-checkpoint-5"
STATE = "the state"
"""The source in messages, if there is no file."""


def value(tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> dict[str, Any]:
    """Tensors and header as one value that shares no memory with anything."""
    copies = {name: tensor.detach().clone() for name, tensor in tensors.items()}
    return {"tensors": copies, "about": copy.deepcopy(dict(header)) | {"format": FORMAT, "layout": layout(copies)}}


def parts(state: Any) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and header of what `value` made; the layout is checked and left out.

    Raises:
        CheckpointError: If it is something else, or has lost a tensor.
    """
    try:
        tensors, header = state["tensors"], dict(state["about"])
        found, saved_layout, saved_format = layout(tensors), header.pop("layout"), header.pop("format")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{shown(state)} is not a state: give what learner.state_dict() returned") from error
    if saved_format != FORMAT:
        raise CheckpointError(f"{STATE} has format {shown(saved_format)}; this version reads {FORMAT!r}")
    if saved_layout != found:
        lost = sorted(found.keys() ^ saved_layout.keys())
        what = f"; {lost[0]!r} is there on one side only" if lost else ""
        raise CheckpointError(
            f"the tensors of {STATE} are not those that its header lists{what}. Nothing was loaded. Hand on all "
            "that learner.state_dict() returned"
        )
    return {name: tensor.detach() for name, tensor in tensors.items()}, copy.deepcopy(header)


def to_bytes(state: Any) -> bytes:
    """A state as a file holds it."""
    return _packed("cannot write the state down", *parts(state))


def from_bytes(data: bytes) -> dict[str, Any]:
    """The state that `to_bytes` wrote down."""
    return value(*_parsed("what was written down", data))


def write(path: str | os.PathLike[str], tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> None:
    """Write tensors and header, and a digest over all of them; a crash leaves the old file or the new one."""
    files.replace(Path(path), _packed(f"cannot save {path}", tensors, header))


def _packed(failed: str, tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> bytes:
    try:
        # Each in memory of its own, as the format wants it: weights may be views of one memory.
        plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
        text = json.dumps(dict(header))
        # One entry: safetensors writes several in any order, and equal states should have equal bytes.
        entry = json.dumps({"format": FORMAT, "sha256": _digest(text, plain), "header": text})
        return to_safetensors(plain, {"hamlearn": entry})
    except (TypeError, ValueError, RuntimeError, RecursionError, KeyError) as error:
        raise CheckpointError(
            f"{failed}: {error}. A checkpoint takes dense tensors, and of streams what JSON keeps"
        ) from error


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and header of a checkpoint; raises if it is truncated, foreign, or not as it was written.

    The tensors lie in memory as they do in the file, and kernels round by alignment: copy what is kept.
    """
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(f"{path} is not a file: give the path that learner.save() wrote")
    try:
        return _parsed(path, path.read_bytes())
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error}): look at its permissions") from error


def _parsed(path: object, data: bytes) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        tensors = load(data)
        metadata = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")]).get("__metadata__") or {}
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise CheckpointError(
            f"{path} cannot be read as a checkpoint ({error}): it is truncated or of another kind. "
            "Restore it from a copy, or start again"
        ) from error
    if "hamlearn" not in metadata:
        raise CheckpointError(f"{path} is a safetensors file but not one that learner.save() wrote")
    try:
        entry = json.loads(metadata["hamlearn"])
        found, text, digest = entry.get("format"), entry.get("header", ""), entry.get("sha256")
    except ValueError:
        found, text, digest = FORMAT, "", None  # a changed bit, which the digest tells
    if found != FORMAT:
        raise CheckpointError(f"{path} has format {shown(found)}; this version reads {FORMAT!r}")
    if digest != _digest(text, tensors):
        raise CheckpointError(
            f"{path} is not as learner.save() wrote it: its content does not have the digest that stands in it. "
            "Restore it from a copy, or start again"
        )
    return tensors, json.loads(text)


def _digest(text: str, tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over the header, and the name, type, shape and bytes of each tensor."""
    total = hashlib.sha256(f"{text}{sorted(layout(tensors).items())}".encode())
    for name in sorted(tensors):
        total.update(tensors[name].reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


@contextlib.contextmanager
def reading(source: object) -> Iterator[None]:
    """Within, whatever is wrong with the content of a file, or of a state, is a `CheckpointError`."""
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:
        reason = _first_problem(error) if isinstance(error, ValidationError) else str(error).rstrip(".")
        if source is STATE:
            made, remedy = "learner.state_dict() returns", "Take it from a learner of the same kind"
        else:
            made, remedy = "learner.save() writes", "Restore the file from a copy"
        raise CheckpointError(
            f"{source} does not hold what {made} for this learner: {reason}. Nothing was loaded. {remedy}, or "
            "start again"
        ) from error


def _first_problem(error: ValidationError) -> str:
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))} is {shown(first['input'])}: {first['msg']}"


class Schema(BaseModel, extra="forbid", strict=True, arbitrary_types_allowed=True):
    """Base of the schemas of headers: exactly these entries, of exactly these types."""


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
