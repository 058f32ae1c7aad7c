"""From a row to an answer, and to what is learned from it: four compiled loops over one piece of memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hamlearn.engine.blocks.direct import DirectLoop
from hamlearn.estimators.encoder import Encoder, Layout
from hamlearn.estimators.mixing import pace_of
from hamlearn.estimators.tasks import CLOSED, Classes, Numbers
from hamlearn.estimators.team import Team, learner_of, moving, restart, sound
from hamlearn.learner import Learner
from hamlearn.learner.learner import eager_of
from hamlearn.loops.bound import Bound, Tensors, bind

ROWS = 256
"""Rows of a block, and from one look at the members to the next."""

loops: dict[Any, Bound | DirectLoop] = {}
"""The first loop of each shape. Estimators of one shape share what it was compiled to, and its memory for rows and
answers: each writes its rows, computes, and reads the answers before another one does."""


def bound(key: Any, step: Callable[..., Any], carry: Tensors, samples: Tensors, constants: Tensors) -> Bound:
    """A step over fixed memory, compiled unless one of this key has been."""
    first = loops.get(key)
    if isinstance(first, Bound):
        return first.sibling(carry, constants)
    loops[key] = made = bind(step, carry, samples, constants)
    return made


def learning(key: Any, learner: Learner, u: Tensor, target: Tensor) -> DirectLoop:
    """A learner's compiled step likewise."""
    first = loops.get(key)
    made = DirectLoop(eager_of(learner), u, target, first if isinstance(first, DirectLoop) else None)
    loops.setdefault(key, made)
    return made


class Pipeline:
    """The compiled loops of an estimator whose columns and classes are known: one call for a block or for one row.

    Four loops learn: `prepare` scales the target and encodes the row; one for each team of networks with one rule
    is a learner's compiled step; `mix` makes the answer, and moves the weights of the mixture. A fifth, `answer`,
    goes through all of it without learning.

    Args:
        task: `Classes` or `Numbers`.
        layout: Where everything lies in the encoded row.
        seed: Of the first weights.

    Attributes:
        raw: Rows as numbers, to be written to.
        latest: The target that was learned last.
        y: Targets, to be written to.
    """

    def __init__(self, task: Classes | Numbers, layout: Layout, seed: int) -> None:
        self.task, self.layout, self.seed = task, layout, seed
        self.encoder = Encoder(layout, task.counts(layout))
        self._key = (type(task), task.outputs, layout)
        raw, asked, y, last = self._samples()
        self.raw, self.asked, self.y, self._last = raw.numpy(), asked.numpy(), y.numpy(), last.numpy()
        self.latest = torch.zeros(task.width, dtype=task.dtype)
        self._prepare = self._bound(
            "prepare",
            self._prepared,
            [*task.carry, *self.encoder.carry],
            [raw, y, last],
            self.encoder.constants(),
        )
        encoded, learned, *row = self._prepare.results
        self._row = row
        rules = sorted({member.rule for member in task.members})
        self.teams, self.loops = [], []
        for rule in rules:
            members = [member for member in task.members if member.rule == rule]
            slices = [layout.slice(member.reads) for member in members]
            team = Team(members, slices, task.outputs, seed, float(task.mask[0]))
            self.teams.append(team)
            self.loops.append(learning((*self._key, rule), learner_of(team, task.loss), encoded, learned))
        samples = [*(loop.y for loop in self.loops), learned, *row]
        self._mix = self._bound("mix", self._mixed, task.mixer.carry, samples, task.constants)
        self.answers = [result.numpy() for result in self._mix.results]
        weights = [weight.detach() for team in self.teams for weight in team.parameters()]
        held = [tensor for group in self.held().values() for tensor in group]
        self._answer = self._bound("answer", self._answered, [], [asked], [*held, *weights])
        self.said = [result.numpy() for result in self._answer.results]

    def _samples(self) -> list[Tensor]:
        """Memory for rows, for those that are only asked, for targets and for the targets before."""
        prepare, answer = (loops.get((*self._key, name)) for name in ("prepare", "answer"))
        if isinstance(prepare, Bound) and isinstance(answer, Bound):
            raw, y, last = prepare.samples
            return [raw, answer.samples[0], y, last]
        rows = [torch.zeros(ROWS, self.layout.raw, dtype=torch.float64) for _ in range(2)]
        return rows + [torch.zeros(ROWS, self.task.width, dtype=self.task.dtype) for _ in range(2)]

    def _bound(
        self, name: str, step: Callable[..., Any], carry: Tensors, samples: Tensors, constants: Tensors
    ) -> Bound:
        return bound((*self._key, name), step, carry, samples, constants)

    def _prepared(self, carry: Tensors, sample: Tensors, constants: Tensors) -> tuple[Tensors, Tensors]:
        own = len(self.task.carry)
        state, row = self.task.step(carry[:own], sample[1], sample[2])
        moments, encoded = self.encoder.step(carry[own:], sample[0], row[1], constants, sample[1])
        return [*state, *moments], [encoded, *row]

    def _mixed(self, carry: Tensors, sample: Tensors, constants: Tensors) -> tuple[Tensors, Tensors]:
        count = len(self.loops)
        return self.task.mixed(carry, torch.cat(list(sample[:count])), sample[count:], constants)

    def _answered(self, carry: Tensors, sample: Tensors, constants: Tensors) -> tuple[Tensors, Tensors]:
        rest, task = iter(constants), self.task
        held = {name: [next(rest) for _ in group] for name, group in self.held().items()}
        fixed, row = held["fixed"], task.before(held["task"], held["latest"][0])
        _, encoded = self.encoder.step(held["moments"], sample[0], row[0], held["bins"])
        outputs = []
        for team in self.teams:
            weights = {name: next(rest) for name, _ in team.named_parameters()}
            weights["mask"] = fixed[0] if fixed else torch.zeros(1)
            outputs.append(torch.func.functional_call(team, weights, (encoded,)))
        return [], task.answer(held["mix"], torch.cat(outputs), row, fixed)

    def open(self, code: int) -> None:
        """Let a class be an answer from now on."""
        self.task.mask[code] = 0.0
        for team in self.teams:
            team.mask[code] = 0.0

    def learn(self, count: int) -> None:
        """Learn from the first rows of `raw` and `y`; `answers` are those from before each of them was learned."""
        self._last[0] = self.latest.numpy()
        self._last[1:count] = self.y[: count - 1]
        self._learn(count)

    def learn_late(self, last: np.ndarray, kept: np.ndarray, said: np.ndarray, ahead: int) -> None:
        """Learn from the first row, whose label is late.

        Args:
            last: The last target that was known when the row came.
            kept: What the networks said then.
            said: What the answer was then.
            ahead: How many rows were answered since.
        """
        self._last[0] = 0.0
        self._last[0, : len(last)] = last
        self.task.pace.fill_(pace_of(ahead))
        before = self.task.mixer.carry[-1].clone()
        self._learn(1, torch.from_numpy(kept))
        self.task.judge(before, said, self.y[0], [part[0] for part in self._row])
        self.task.pace.fill_(1.0)

    def _learn(self, count: int, kept: Tensor | None = None) -> None:
        self._prepare(count)
        for loop in self.loops:
            loop(count)
        if kept is not None:
            said = self.task.again(kept, [part[0] for part in self._row])
            for loop, part in zip(self.loops, said.split([len(team.nets) for team in self.teams]), strict=True):
                loop.y[0] = part
        self._mix(count)
        self.latest.numpy()[:] = self.y[count - 1]
        encoder = self.encoder
        encoder.remember(self.raw[:count])
        if not encoder.rows % ROWS or encoder.fit_is_due:
            self._look()

    def ask(self, count: int) -> None:
        """Answer the first rows of `asked`, in `said`; nothing moves."""
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
        index = 0
        for team, loop in zip(self.teams, self.loops, strict=True):
            for member in range(len(team.nets)):
                if self.task.mixer.lost(index) or not sound(team.nets[member]):
                    restart(team, loop, member)
                    # Its share of the answer is the least one for now.
                    self.task.mixer.forget(index)
                index += 1

    def _reexpress(self, start: int, count: int, matrix: Tensor, offset: Tensor) -> None:
        """The same answers by weights of the new encoding of a column."""
        for team in self.teams:
            for (first, last), net in zip(team.slices, team.nets, strict=True):
                layer = next(net.children())
                if not first <= start < last or not isinstance(layer, nn.Linear):
                    continue
                part = layer.weight[:, start - first : start - first + count]
                old = part.double()
                layer.bias.add_((old @ offset).float())
                part.copy_((old @ matrix.T).float())

    def held(self) -> dict[str, list[Tensor]]:
        """What an answer depends on beside the networks; these are the tensors themselves."""
        return {
            "latest": [self.latest],
            "task": self.task.carry,
            "moments": self.encoder.carry,
            "bins": self.encoder.constants(),
            "mix": self.task.mixer.carry,
            "fixed": self.task.constants,
        }

    def tensors(self) -> dict[str, Tensor]:
        """All that moves, by name; these are the tensors themselves."""
        found: dict[str, Tensor] = {"mask": self.task.mask}
        groups = self.held()
        del groups["fixed"]  # the mask, which has a name already
        for name, group in groups.items():
            found |= {f"{name}.{index}": tensor for index, tensor in enumerate(group)}
        for number, (team, loop) in enumerate(zip(self.teams, self.loops, strict=True)):
            found |= {f"team.{number}.{name}": tensor for name, tensor in moving(team, loop).items()}
        found["recent"] = torch.from_numpy(self.encoder.recent)
        return found

    def load(self, tensors: dict[str, Tensor], rows: int) -> None:
        """Write all that moves."""
        own = self.tensors()
        for name, tensor in own.items():
            tensor.copy_(tensors[name])
        self.encoder.rows = rows
        for code in range(self.task.width):
            if self.task.mask[code] > CLOSED:
                self.open(code)
