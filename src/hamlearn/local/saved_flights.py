"""Samples in flight as a checkpoint keeps them: tensors by name, and the rest as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils import _pytree

from hamlearn.local.flights import Flight
from hamlearn.state import Sample


def dump(flights: dict[int, Flight], inputs: tuple[str, ...]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors by name, and the rest; the external inputs are found again in u."""
    tensors: dict[str, Tensor] = {}
    header = {}
    for entry, flight in flights.items():
        held, header[str(entry)] = _dump(flight, f"flight/{entry}", inputs)
        tensors |= held
    return tensors, header


def restore(
    tensors: dict[str, Tensor], header: dict[str, Any], values: Callable[[Any], dict[str, Any]]
) -> dict[int, Flight]:
    """The flights that `dump` took apart; `values` gives the external inputs of u by name."""
    return {int(e): _restore(tensors, saved, f"flight/{e}", values) for e, saved in header.items()}


def _dump(flight: Flight, prefix: str, inputs: tuple[str, ...]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    tensors: dict[str, Tensor] = {} if flight.loss is None else {f"{prefix}/loss": flight.loss}
    tensors |= {f"{prefix}/h/{n}": x for n, x in flight.h.items() if n not in inputs}
    tensors |= {f"{prefix}/z/{n}": x for n, x in flight.z.items()}
    tensors |= {f"{prefix}/draws/{n}/{i}": x for n, xs in flight.draws.items() for i, x in enumerate(xs)}
    sample, trees = flight.sample, {}
    for part in ("u", "target"):
        leaves, spec = _pytree.tree_flatten(getattr(sample, part))
        found = {str(i): leaf for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)}
        tensors |= {f"{prefix}/{part}/{i}": leaf for i, leaf in found.items()}
        others = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        trees[part] = [_pytree.treespec_dumps(spec), json.dumps(others), sorted(found, key=int)]
    header = {"t": flight.t, "stride": flight.stride, "reported": flight.reported, "trees": trees}
    return tensors, header | {"sample": {"tau": sample.tau, "boundary": sample.boundary}}


def _restore(
    tensors: dict[str, Tensor], header: dict[str, Any], prefix: str, values: Callable[[Any], dict[str, Any]]
) -> Flight:
    parts = {}
    for part, (spec, others, found) in header["trees"].items():
        leaves = json.loads(others)
        for i in found:
            leaves[int(i)] = tensors[f"{prefix}/{part}/{i}"]
        parts[part] = _pytree.tree_unflatten(leaves, _pytree.treespec_loads(spec))
    flight = Flight(
        Sample(**parts, **header["sample"]), header["t"], header["stride"], header["reported"], values(parts["u"])
    )
    flight.loss = tensors.get(f"{prefix}/loss")
    for key in sorted(name for name in tensors if name.startswith(f"{prefix}/")):
        kind, _, name = key.removeprefix(f"{prefix}/").partition("/")
        if kind == "draws":
            flight.draws.setdefault(name.rpartition("/")[0], []).append(tensors[key])
        elif kind in ("h", "z"):
            getattr(flight, kind)[name] = tensors[key]
    return flight
