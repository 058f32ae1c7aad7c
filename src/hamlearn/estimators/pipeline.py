"""From a row to an answer, and to what is learned from it: three compiled loops over one piece of memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hamlearn.estimators.encoder import Encoder, Layout
from hamlearn.estimators.mixing import pace_of
from hamlearn.estimators.tasks import ClassTask, NumberTask
from hamlearn.estimators.team import UNITS, Team
from hamlearn.loops.bound import Bound, Tensors, bind

ROWS = 256
"""Rows of a block, and from one look at the members to the next."""

loops: dict[Any, Bound] = {}
"""The first loop of each shape. Estimators of one shape share what it was compiled to, and its memory for rows and
answers: each writes its rows, computes, and reads the answers before another one does."""


def bound(key: Any, step: Callable[..., Any], carry: Tensors, samples: Tensors, constants: Tensors) -> Bound:
    """A step over fixed memory, compiled unless one of this key has been."""
    first = loops.get(key)
    if first is not None:
        return first.sibling(carry, constants)
    loops[key] = made = bind(step, carry, samples, constants)
    return made


class Answering:
    """How a row is answered; it holds nothing that moves.

    Args:
        task: `ClassTask` or `NumberTask`.
        encoder: Of the rows.
        team: The networks.
    """

    def __init__(self, task: ClassTask | NumberTask, encoder: Encoder, team: Team) -> None:
        self.task, self.encoder, self.team = task, encoder, team

    def held(self) -> dict[str, list[Tensor]]:
        """What an answer depends on; these are the tensors themselves."""
        return {
            "latest": [self.task.latest],
            "task": self.task.carry,
            "moments": self.encoder.carry,
            "bins": self.encoder.constants(),
            "mix": self.task.mixer.carry,
            "fixed": self.task.constants,
            "team": self.team.carry,
        }

    def __call__(self, held: Mapping[str, Tensors], raw: Tensor) -> list[Tensor]:
        """The answer to a row, and what else `task.answer` returns, from what is held."""
        row = self.task.before(held["task"], held["latest"][0])
        _, encoded = self.encoder.step(held["moments"], raw, row[0], held["bins"])
        outputs = self.team.answer(held["team"], encoded)
        return self.task.answer(held["mix"], outputs, row, held["fixed"])


class Pipeline:
    """The compiled loops of an estimator whose columns and classes are known: one call for a block or for one row.

    `learn` scales the target, encodes the row and lets all networks learn; `mix` makes the answer, and moves the
    weights of the mixture; `answer` goes through all of it without learning.

    Args:
        task: `ClassTask` or `NumberTask`.
        layout: Where everything lies in the encoded row.
        seed: Of the first weights.

    Attributes:
        raw: Rows as numbers, to be written to.
        asked: Likewise, for those that are only to be answered.
        y: Targets, to be written to.
        answers: Those of the rows that were learned last, from before.
        asked_answers: What `task.answer` returned for the rows that were asked last.
    """

    def __init__(self, task: ClassTask | NumberTask, layout: Layout, seed: int) -> None:
        self.task, self.layout, self.seed = task, layout, seed
        self.encoder = Encoder(layout, task.counts(layout))
        slices = [layout.slice(member.reads, UNITS) for member in task.members]
        self.team = Team(task.members, slices, task.outputs, seed, memory=layout.slice("zl"))
        self.answering = Answering(task, self.encoder, self.team)
        self._key = (type(task), task.outputs, layout)
        raw, asked, y, last = self._samples()
        self.raw, self.asked, self.y, self._last = raw.numpy(), asked.numpy(), y.numpy(), last.numpy()
        carry = [*task.carry, *self.encoder.carry, *self.team.carry]
        constants = [*self.encoder.constants(), *task.constants]
        self._learn_rows = self._bound("learn", self._learned, carry, [raw, y, last], constants)
        self._outputs, *self._row = self._learn_rows.results
        self._mix = self._bound("mix", self._mixed, task.mixer.carry, self._learn_rows.results, task.constants)
        self.answers = [result.numpy() for result in self._mix.results]
        held = [tensor for group in self.answering.held().values() for tensor in group]
        self._answer = self._bound("answer", self._answered, [], [asked], held)
        self.asked_answers = [result.numpy() for result in self._answer.results]

    def _samples(self) -> list[Tensor]:
        """Memory for rows, for those that are only asked, for targets and for the targets before."""
        learn, answer = (loops.get((*self._key, name)) for name in ("learn", "answer"))
        if learn is not None and answer is not None:
            raw, y, last = learn.samples
            return [raw, answer.samples[0], y, last]
        rows = [torch.zeros(ROWS, self.layout.raw, dtype=torch.float64) for _ in range(2)]
        return rows + [torch.zeros(ROWS, self.task.width, dtype=self.task.dtype) for _ in range(2)]

    def _bound(
        self, name: str, step: Callable[..., Any], carry: Tensors, samples: Tensors, constants: Tensors
    ) -> Bound:
        return bound((*self._key, name), step, carry, samples, constants)

    def _learned(self, carry: Tensors, sample: Tensors, constants: Tensors) -> tuple[Tensors, Tensors]:
        first = len(self.task.carry)
        second, bins = first + len(self.encoder.carry), len(self.encoder.constants())
        raw, y, last = sample
        state, row = self.task.step(carry[:first], y, last)
        moments, encoded = self.encoder.step(carry[first:second], raw, row[1], constants[:bins], y)
        loss = lambda outputs, target: self.task.loss(outputs + constants[bins], target)  # noqa: E731
        team, outputs = self.team.step(carry[second:], encoded, row[0], loss)
        return [*state, *moments, *team], [outputs, *row]

    def _mixed(self, carry: Tensors, sample: Tensors, constants: Tensors) -> tuple[Tensors, Tensors]:
        return self.task.mixed(carry, sample[0], sample[1:], constants)

    def _answered(self, carry: Tensors, sample: Tensors, constants: Tensors) -> tuple[Tensors, Tensors]:
        rest = iter(constants)
        held = {name: [next(rest) for _ in group] for name, group in self.answering.held().items()}
        return [], self.answering(held, sample[0])

    def open(self, code: int) -> None:
        """Let a class be an answer from now on."""
        self.task.mask[code] = 0.0

    def learn(self, count: int) -> None:
        """Learn from the first rows of `raw` and `y`; `answers` are those from before each of them was learned."""
        self._last[0] = self.task.latest.numpy()
        self._last[1:count] = self.y[: count - 1]
        self._learn_rows(count)
        self._finish(count)

    def learn_late(self, last: np.ndarray, outputs: np.ndarray, answer: np.ndarray, ahead: int) -> None:
        """Learn from the first row, whose label is late.

        Args:
            last: The last target that was known when the row came.
            outputs: Those of the networks then.
            answer: The answer then.
            ahead: How many rows were answered since.
        """
        self._last[0] = 0.0
        self._last[0, : len(last)] = last
        self.task.pace.fill_(pace_of(ahead))
        before = self.task.mixer.carry[-1].clone()
        self._learn_rows(1)
        row = [part[0] for part in self._row[1:]]  # as `task.before` makes it, without the target to learn
        # The mixture judges the networks by what they answered then.
        self._outputs[0] = self.task.restored(torch.from_numpy(outputs), row)
        self._finish(1)
        self.task.judge(before, answer, self.y[0], row)
        self.task.pace.fill_(1.0)

    def _finish(self, count: int) -> None:
        self._mix(count)
        self.task.latest.numpy()[:] = self.y[count - 1]
        self.encoder.remember(self.raw[:count])
        if not self.encoder.rows % ROWS or self.encoder.fit_is_due:
            self._look()

    def ask(self, count: int) -> None:
        """Answer the first rows of `asked`, in `asked_answers`; nothing moves."""
        self._answer(count)

    def until_look(self) -> int:
        """How many rows may be learned in one call."""
        return min(ROWS - self.encoder.rows % ROWS, self.encoder.until_fit())

    @torch.no_grad()
    def _look(self) -> None:
        """Between two blocks: new quantiles, if columns have moved; members that have diverged begin again."""
        if self.encoder.fit_is_due:
            for start, count, matrix, offset in self.encoder.refit():
                self._reexpress(start, count, torch.from_numpy(matrix), torch.from_numpy(offset))
        team, mixer = self.team, self.task.mixer
        lost = [at for at in range(len(team.members)) if mixer.lost(at) or not team.sound(at)]
        for index in lost:
            team.restart(index, [other for other in mixer.best_first() if other not in lost])
            # Its share of the answer is the least one for now.
            mixer.forget(index)

    def _reexpress(self, start: int, count: int, matrix: Tensor, offset: Tensor) -> None:
        """The same answers by weights of the new encoding of a column."""
        for (first, last), net in zip(self.team.slices, self.team.nets, strict=True):
            layer = next(net.children())
            if not first <= start < last or not isinstance(layer, nn.Linear):
                continue
            part = layer.weight[:, start - first : start - first + count]
            old = part.double()
            layer.bias.add_((old @ offset).float())
            part.copy_((old @ matrix.T).float())

    def tensors(self) -> dict[str, Tensor]:
        """All that moves, by name; these are the tensors themselves."""
        groups = self.answering.held()
        del groups["team"], groups["fixed"]
        found = {f"{name}.{index}": tensor for name, group in groups.items() for index, tensor in enumerate(group)}
        found |= {f"team.{name}": tensor for name, tensor in self.team.named.items()}
        return found | {"mask": self.task.mask, "recent": torch.from_numpy(self.encoder.recent)}

    def load(self, tensors: Mapping[str, Tensor], rows: int) -> None:
        """Write all that moves."""
        for name, tensor in self.tensors().items():
            tensor.copy_(tensors[name])
        self.encoder.rows = rows
