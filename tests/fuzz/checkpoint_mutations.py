"""Ways to spoil a checkpoint: by bytes, by its header, and by its tensors with a digest that fits again."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

import torch
from safetensors.torch import load

from hamlearn.state.checkpoint import _content, _described, _head, _placed

DEEP = "@deep@"
VALUES: list[Any] = [
    None, True, False, -1, 0, 1, 2, 7, 10**18, 2**63, 10**400, -0.0, 0.5, -3.5, 1e308, float("nan"), float("inf"),
    "", "x", "tensor", "h/0", [], [0], {}, {"value": 1}, {"tensor": 0}, {"tuple": []}, {"list": [{"value": 0}]},
    DEEP,
    {"namedtuple": "os.terminal_size", "fields": [["columns", {"value": 0}], ["lines", {"value": 1}]]},
    {"dict": [["a", {"value": 0}], ["a", {"value": 1}]]}, {"defaultdict": []}, [1.0, 0.0, 0.0, 1.0, -1],
]  # fmt: skip
Parts = tuple[dict[str, Any], dict[str, torch.Tensor]]


def parse(data: bytes) -> Parts:
    """Header and tensors of a whole checkpoint, in the same order every time."""
    return json.loads(raw_header(data)["__metadata__"]["hamlearn"]), dict(sorted(load(data).items()))


def raw_header(data: bytes) -> dict[str, Any]:
    """The header that safetensors itself writes."""
    header: dict[str, Any] = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return header


def assemble(header: Any, tensors: dict[str, torch.Tensor]) -> bytes:
    """A checkpoint with a digest that fits."""
    depth = 100_000
    text = json.dumps(header).replace(f'"{DEEP}"', "[" * depth + "]" * depth)
    contents = {name: _content(name, tensor) for name, tensor in tensors.items()}
    described = {name: _described(tensor) for name, tensor in tensors.items()}
    return b"".join([_head(text, described, contents), *(contents[name] for name in _placed(described))])


def by_bytes(rng: random.Random, data: bytes) -> bytes:
    """Flipped, cut, inserted, repeated or blanked bytes."""
    spoiled, size = bytearray(data), len(data)
    head = 8 + int.from_bytes(data[:8], "little")
    at = rng.randrange(rng.choice([8, head, size]))
    length = rng.choice([1, 1, 4, 64, 1000])
    kind = rng.randrange(6)
    if kind <= 1:
        for _ in range(rng.choice([1, 1, 1, 8])):
            spoiled[rng.randrange(rng.choice([head, size]))] ^= 1 << rng.randrange(8)
    elif kind == 2:
        del spoiled[at:]
    elif kind == 3:
        del spoiled[at : at + length]
    elif kind == 4:
        spoiled[at:at] = rng.choice([rng.randbytes(length), data[at : at + length], bytes(length)])
    else:
        spoiled[at : at + length] = bytes(length)
    return bytes(spoiled)


def by_raw_header(rng: random.Random, data: bytes) -> bytes:
    """Another claim about where tensors lie and what they are, or about the digest."""
    header = raw_header(data)
    name = rng.choice(list(header))
    entry = header[name]
    if name == "__metadata__":
        header[name] = rng.choice([{}, {"hamlearn": entry["hamlearn"]}, {"sha256": entry["sha256"]}])
    elif rng.random() < 0.3:
        entry["dtype"] = rng.choice(["F64", "F32", "F16", "I64", "U8", "BOOL", "F8_E4M3", "C64", "X"])
    elif rng.random() < 0.5:
        entry["shape"] = rng.choice([[], [0], [1], entry["shape"][::-1], [2**40], [-1], ["x"]])
    else:
        other = rng.choice(list(header))
        header[name], header[other] = header[other], entry
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data[8 + int.from_bytes(data[:8], "little") :]


def edited(rng: random.Random, header: dict[str, Any]) -> dict[str, Any]:
    """The header with one value, key or branch changed."""
    header = copy.deepcopy(header)
    holder: Any = header
    while True:
        key = rng.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
        if isinstance(holder[key], dict | list) and holder[key] and rng.random() < 0.85:
            holder = holder[key]
            continue
        break
    kind = rng.randrange(5)
    if kind == 0:
        del holder[key]
    elif kind == 1 and isinstance(holder, list):
        holder.insert(rng.randrange(len(holder) + 1), copy.deepcopy(rng.choice([holder[key], *VALUES])))
    elif kind == 1:
        holder[rng.choice(["x", "", "since", "0"])] = holder.pop(key)
    elif kind == 2 and type(holder[key]) in (int, float):
        holder[key] = rng.choice(
            [holder[key] + 1, holder[key] - 1, -holder[key], holder[key] * 2, str(holder[key])]
        )
    else:
        holder[key] = copy.deepcopy(rng.choice(VALUES))
    return header


def with_other_tensors(rng: random.Random, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors with one of them swapped, renamed, converted, reshaped, dropped or filled."""
    tensors = dict(tensors)
    name, other = rng.choice(list(tensors)), rng.choice(list(tensors))
    tensor, kind = tensors[name], rng.randrange(8)
    if kind == 0:
        tensors[name], tensors[other] = tensors[other], tensor
    elif kind == 1:
        tensors[f"{name.rpartition('/')[0]}/{rng.choice(['0', '1', '9', 'x', ''])}"] = tensors.pop(name)
    elif kind == 2:
        tensors[name] = tensor.to(rng.choice([torch.float64, torch.float16, torch.int64, torch.uint8, torch.bool]))
    elif kind == 3:
        tensors[name] = rng.choice(
            [tensor.reshape(-1), tensor[None], tensor.reshape(-1)[:1], tensor.reshape(-1)[:0]]
        )
    elif kind == 4:
        del tensors[name]
    elif kind == 5:
        tensors[rng.choice(["extra", "h/7", "memory/0/u/9", "rng/cuda/1", "engine/pending/x"])] = tensor
    elif kind == 6 and tensor.is_floating_point():
        tensors[name] = torch.full_like(tensor, rng.choice([0.0, float("nan"), float("inf"), 1e30]))
    else:
        generator = torch.Generator().manual_seed(rng.randrange(2**31))
        tensors[name] = torch.randint(0, 250, tensor.shape, generator=generator).to(tensor.dtype)
    return tensors
