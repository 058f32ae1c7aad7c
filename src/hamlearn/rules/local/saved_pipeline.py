"""Samples in flight as a checkpoint keeps them: tensors by name, and the rest as JSON."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hamlearn._base.claims import Tensors, entries, flag, generator_state, number, record, whole
from hamlearn.rules.local.flights import Entry, Lines, Pipeline
from hamlearn.rules.local.local_system import LocalSystem
from hamlearn.state.tokens import pack_sample, unpack_sample


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
    """What `saved_pipeline` took apart, but for the stacks; raises `ValueError` if it cannot have written this."""
    about, device = record(header, "the pipeline", "number", "entries"), system.theta[0].device
    listed = entries(about["entries"], "the list of samples in flight")
    if len(listed) != len(empty.entries):
        raise ValueError(f"{len(listed)} samples can be in flight, not {len(empty.entries)}")
    found = [
        None if one is None else _entry(left.under(f"entry/{age}/"), one, device) for age, one in enumerate(listed)
    ]
    carry = Pipeline(
        whole(about["number"], "the number of ticks"), found, empty.h, empty.z, empty.draws, empty.stacks
    )
    for age, entry in enumerate(found):
        for name, value in () if entry is None else system.wiring.values(entry.sample.u).items():
            carry.h.put(name, age, value)
    for kind, lines in (("h/", carry.h), ("z/", carry.z)):
        arrived = left.under(kind)
        for name in arrived.names():
            node, age = _place(lines, name, found)
            lines.put(node, age, arrived.keep(name, device))
    draws = left.under("draws/")
    for place in dict.fromkeys(name.rpartition("/")[0] for name in draws.names()):
        node, age = _place(carry.draws, place, found)
        # States of random number generators stay on the CPU, wherever the weights are.
        states = enumerate(draws.counted(f"{place}/"))
        what = f"the random state of node {node!r}"
        carry.draws.put(
            node, age, [generator_state(draws.take(name), what, None if i else "cpu") for i, name in states]
        )
    draws.done()
    return carry


def _place(lines: Lines, name: str, found: list[Entry | None]) -> tuple[str, int]:
    node, _, age = name.rpartition("/")
    first, last = lines.spans.get(node, (0, -1))
    if not age.isdecimal() or str(int(age)) != age or not first <= int(age) <= last or found[int(age)] is None:
        raise ValueError(f"{name!r} cannot be held there")
    return node, int(age)


def _entry(left: Tensors, value: Any, device: torch.device) -> Entry:
    about = record(value, "a sample in flight", "t", "stride", "reported", "sample")
    sample = unpack_sample(left, about["sample"], "", device)
    loss = left.keep("loss", device) if "loss" in left else None
    if loss is not None and (loss.dim() or not loss.is_floating_point()):
        raise ValueError("the loss of a sample in flight is not one number")
    left.done()
    t = number(about["t"], "the time of a sample in flight")
    stride = number(about["stride"], "the time step of a sample in flight", positive=True)
    return Entry(sample, t, stride, flag(about["reported"], "reported of a sample in flight"), None, loss)
