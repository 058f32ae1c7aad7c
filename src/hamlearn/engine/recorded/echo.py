"""Sequences in two calls: tokens forward at frozen weights, and their echo back."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from hamlearn._base import trees
from hamlearn.engine.recorded.recorder import BlockResult, LoopInputs, Recorder, named
from hamlearn.engine.recorded.trace import Groups, RecordedStep, ReferenceStep, Specs, Stage, Variant, mark
from hamlearn.loops import UnsupportedError
from hamlearn.loops.draws import Draws
from hamlearn.loops.index_checks import counted
from hamlearn.rules.echo import Echoed, Stretch
from hamlearn.rules.transition import first_state
from hamlearn.state.carry import Carry
from hamlearn.streams.blocks import Block


class TokenForward(RecordedStep):
    """(h, token) in; the next h, the state that the token met, y and the loss out."""

    def __call__(self, given: Groups) -> tuple[Groups, Groups]:
        """The state and the buffers after the token; the state that it met, and what it led to."""
        stage = Stage(self.order, given, -1, *self.names)
        before = [buffer._version for buffer in stage.buffers]
        with counted() as faults:
            token, met = stage.run(lambda: self._token(stage, given))
        if [buffer._version for buffer in stage.buffers] != before:
            # Along the echo they would be others than those that the token met.
            raise UnsupportedError("a token changes buffers of the network, which only the eager echo takes back")
        y, self.y_spec = trees.flatten(token.y)
        watched = token.h_next if self.variant.watch == "state" else []
        loss, running = ([] if x is None else [x] for x in (token.loss, token.running))
        results = {"met": met, "y": y, "loss": loss, "running": running, "mark": mark(watched, faults)}
        return {"h": token.h_next}, results

    def _token(self, stage: Stage, given: Groups) -> tuple[Any, list[Tensor]]:
        h_spec, sample = self.specs[0], self.sample(given)
        # A learned first state is part of the graph of the token that meets it.
        with torch.enable_grad():
            start, (new,) = first_state(stage.system.network.start(sample.u), h_spec), given["fresh"]
            h = [torch.where(new, a, b) for a, b in zip(start, given["h"], strict=True)]
        order: Any = stage.order
        token, _ = order.run_token(sample, stage.rates, h, None, h_spec)
        return token, [leaf.detach() for leaf in h]


class TokenBackward(TokenForward):
    """(z, what flows back, ω, token) in; the same for the token before it out."""

    def __call__(self, given: Groups) -> tuple[Groups, Groups]:
        """ω and the costates after the token's echo."""
        stage = Stage(self.order, given, -1, *self.names)

        def back() -> Any:
            token, _ = self._token(stage, given)
            omega = [tensor.clone() for tensor in given["omega"]]
            return stage.order.echo_token(token, given["z"], given["flow"], omega)  # type: ignore[attr-defined]

        z, flow, omega = stage.run(back)
        return {"omega": omega, "z": z, "flow": flow}, {}


class EchoEngine(Recorder):
    """Runs the tokens of a sequence, and their echo.

    Args:
        order: The echo that the eager engine steps by.
        checked: Whether each token says that the state stayed finite.
    """

    order: Echoed

    def __init__(self, order: Echoed, checked: bool) -> None:
        super().__init__(order)
        self.checked = checked

    def forward(
        self,
        h: list[Tensor],
        h_spec: trees.Spec,
        rates: list[Tensor],
        fresh: Tensor,
        block: Block,
        reference: ReferenceStep,
    ) -> tuple[BlockResult, Stretch]:
        """Run the tokens of a block from the state `h`; the result has the last state alone as its carry.

        `reference` takes the first token eagerly.
        """
        assert block.u is not None
        h = [leaf.detach().clone(memory_format=torch.contiguous_format) for leaf in h]
        device, constant = self.order.system.theta[0].device, self._constant()
        given = {"rates": [row.to(device) for row in rates], "u": block.u, "target": block.target}
        rows = _contiguous(given | {"fresh": [fresh.to(device)]})
        step = TokenForward(_token_by_token(self.order), *self._form(rows, block, h_spec))
        found, y_spec = self.loop(step, LoopInputs({"h": h}, rows, constant), block.count, reference)
        stretch = Stretch({"h": found["met"], **rows, "random": self.random}, block, h_spec)
        loss, marks, running = (found[name][0] if found[name] else None for name in ("loss", "mark", "running"))
        return BlockResult(Carry(h, [], [], h_spec), found["y"], y_spec, loss, running, marks), stretch

    def backward(self, stretches: Sequence[Stretch], omega: list[Tensor]) -> list[Tensor]:
        """ω after the echo of all tokens of the stretches, the last one first."""
        joined = _joined(stretches)
        rows = _contiguous({name: [row.flip(0) for row in group] for name, group in joined.rows.items()})
        random = rows.pop("random")
        omega = [tensor.clone(memory_format=torch.contiguous_format) for tensor in omega]
        z, flow = ([torch.zeros_like(row[0]) for row in rows["h"]] for _ in "zf")
        step = TokenBackward(_token_by_token(self.order), *self._form(rows, joined.block, joined.spec))
        inputs = LoopInputs({"omega": omega, "z": z, "flow": flow}, rows, self._constant())
        with self._drawing_again(random):
            self.loop(step, inputs, joined.block.count, ReferenceStep(lambda: None, self.order.system.network))
        return omega

    @contextmanager
    def _drawing_again(self, rows: list[Tensor]) -> Iterator[None]:
        """Within, tokens draw these random numbers."""
        before = self.numbers

        def numbers(draws: Draws, count: int) -> list[Tensor]:
            if [row.shape[1:] for row in rows] != [like.shape for like in draws.like]:
                raise UnsupportedError("its tokens drew other random numbers when they were run first")
            return [row[:count] for row in rows]

        self.numbers = numbers
        try:
            yield
        finally:
            self.numbers = before

    def _constant(self) -> Groups:
        own = {"theta": [weight.detach() for weight in self.order.system.theta]}
        return own | {
            "buffers": named(self.order, self.buffer_names),
            "frozen": named(self.order, self.frozen_names),
        }

    def _form(self, rows: Groups, block: Block, h_spec: trees.Spec) -> tuple[Variant, Specs, Any]:
        variant = Variant(bool(rows["target"]), True, "state" if self.checked else "nothing")
        return variant, (h_spec, block.u_spec, block.target_spec), (self.buffer_names, self.frozen_names)


def _token_by_token(order: Echoed) -> Echoed:
    """The same echo, with one graph per token."""
    order = copy.copy(order)
    order.joined = False
    return order


def _joined(stretches: Sequence[Stretch]) -> Stretch:
    """Several stretches as one; tokens of a stretch without any target get arbitrary ones."""
    if len(stretches) == 1:
        return stretches[0]
    like = next((stretch for stretch in stretches if stretch.rows["target"]), stretches[0])
    found: list[Groups] = []
    for stretch in stretches:
        target = stretch.rows["target"]
        if not target:
            target = [row[:1].expand(stretch.block.count, *row.shape[1:]) for row in like.rows["target"]]
        found.append(stretch.rows | {"target": target})
    kinds = {
        (
            str(stretch.block.u_spec),
            *((row.shape[1:], row.dtype) for part in ("h", "u", "target", "random") for row in rows[part]),
        )
        for stretch, rows in zip(stretches, found, strict=True)
    }
    if len(kinds) > 1:
        raise UnsupportedError("the tokens of a sequence differ in shape, type or structure")
    joined = {
        name: [torch.cat(parts) for parts in zip(*(rows[name] for rows in found), strict=True)]
        for name in like.rows
    }
    count = sum(stretch.block.count for stretch in stretches)
    return Stretch(joined, Block(count, None, like.block.u_spec, [], like.block.target_spec), like.spec)


def _contiguous(groups: Groups) -> Groups:
    return {name: [row.contiguous() for row in group] for name, group in groups.items()}
