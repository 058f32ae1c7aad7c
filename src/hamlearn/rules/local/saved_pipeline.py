"""Samples in flight as a checkpoint keeps them: tensors by name, and the rest as JSON."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hamlearn.rules.local.flights import Entry, Pipeline
from hamlearn.rules.local.local_system import LocalSystem
from hamlearn.state.packing import pack_sample, unpack_sample
from hamlearn.state.tensors import Tensors


def saved_pipeline(carry: Pipeline, inputs: tuple[str, ...]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors by node and age, and the rest; the external inputs are found again in u."""
    tensors = {f"h/{name}/{age}": x for name, age, x in carry.h.items() if name not in inputs}
    tensors |= {f"z/{name}/{age}": x for name, age, x in carry.z.items()}
    for name, age, states in carry.draws.items():
        tensors |= {f"draws/{name}/{age}/{i}": x for i, x in enumerate(states)}
    for name, stack in carry.stacks.items():
        tensors |= {f"stack/{name}/h": stack.h, f"stack/{name}/z": stack.z, f"stack/{name}/ring": stack.ring.slots}
    header: list[Any] = []
    for age, entry in enumerate(carry.entries):
        if entry is None:
            header.append(None)
            continue
        parts, sample = pack_sample(entry.sample, f"entry/{age}/")
        tensors |= parts | ({} if entry.loss is None else {f"entry/{age}/loss": entry.loss})
        header.append({"t": entry.t, "stride": entry.stride, "reported": entry.reported, "sample": sample})
    return tensors, {"number": carry.number, "entries": header}


def loaded_pipeline(left: Tensors, header: Any, empty: Pipeline, system: LocalSystem) -> Pipeline:
    """What `saved_pipeline` took apart, but for the stacks."""
    device, listed = system.theta[0].device, header["entries"]
    if len(listed) != len(empty.entries):
        raise ValueError(f"{len(listed)} samples can be in flight, not {len(empty.entries)}")
    found = [
        None if one is None else _entry(left.under(f"entry/{age}/"), one, device) for age, one in enumerate(listed)
    ]
    carry = empty._replace(number=header["number"], entries=found)
    for age, entry in enumerate(found):
        for name, value in () if entry is None else system.wiring.values(entry.sample.u).items():
            carry.h.put(name, age, value)
    for kind, lines in (("h/", carry.h), ("z/", carry.z)):
        arrived = left.under(kind)
        for name in arrived.names():
            node, age = _place(name)
            lines.put(node, age, arrived.keep(name, device))
    draws = left.under("draws/")
    for place in dict.fromkeys(name.rpartition("/")[0] for name in draws.names()):
        node, age = _place(place)
        # States of random number generators stay on the CPU, wherever the weights are.
        carry.draws.put(node, age, [draws.take(name).clone() for name in draws.counted(f"{place}/")])
    return carry


def _place(name: str) -> tuple[str, int]:
    node, _, age = name.rpartition("/")
    return node, int(age)


def _entry(left: Tensors, value: Any, device: torch.device) -> Entry:
    sample = unpack_sample(left, value["sample"], "", device)
    loss = left.keep("loss", device) if "loss" in left else None
    return Entry(sample, value["t"], value["stride"], value["reported"], None, loss)
