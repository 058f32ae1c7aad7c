"""Operations that must move nothing, or everything: predict, save and load, copies, modes, changed attributes."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import torch

import hamlearn as hl
from tests.fuzz import cases, modules, zoo
from tests.fuzz.looks import Mismatch, assert_same, assert_trees_close, look, same

Errors = hl.errors.HamlearnError


class Moves:
    """Part of a session: what is done to a learner between two samples."""

    def do_predict(self) -> None:
        u = self.sample(self.k).u
        before = look(self.subject)
        self.seed()
        noise = torch.get_rng_state()
        y = self.subject.predict(u)
        if not same(noise, torch.get_rng_state()):
            raise Mismatch("predict drew a random number")
        assert_same(look(self.subject), before, "predict")
        self.seed()
        self.judge.own_buffers()
        assert_trees_close(y, self.judge.predict(u), self.tolerance, "predict")

    def fresh(self) -> tuple[hl.Learner, Any]:
        """A learner of the same kind with other weights, and its loss."""
        made, loss = cases.learner_of(self.spec, seed=self.spec.seed + 77)
        made.network.train(self.mode)
        if self.value is not None:
            self.turn(made.network, loss)
        return made, loss

    def do_load(self, where: str) -> None:
        if where == "value" and not hasattr(self.subject, "state_dict"):
            where = "fresh"
        before, path = look(self.subject), self.folder / "saved"
        self.subject.save(path)
        assert_same(look(self.subject), before, "save")
        if where == "fresh":
            self.subject, self.loss = self.fresh()
        elif where == "earlier":
            for place in range(2):
                self.subject.step(self.sample(self.k + 100 + place))
        if where == "value":
            value = self.subject.state_dict()
            self.subject, self.loss = self.fresh()
            self.subject.load_state_dict(value)
        else:
            self.subject.load(path)
        assert_same(look(self.subject), before, f"load into {where}")

    def do_copy(self, how: str) -> None:
        before = look(self.subject)
        try:
            both = (self.subject, self.loss)
            made, loss = copy.deepcopy(both) if how == "deepcopy" else pickle.loads(pickle.dumps(both))
        except Errors as error:
            self.counts[f"{how} refused: {type(error).__name__}"] += 1
            assert_same(look(self.subject), before, f"a refused {how}")
            return
        assert_same(look(self.subject), before, f"the original of a {how}")
        assert_same(look(made), before, how)
        self.watched = (self.subject, before)
        self.subject, self.loss = made, loss

    def do_reset(self) -> None:
        for one in (self.subject, self.twin, self.judge):
            one.reset()

    def do_mode(self, training: bool) -> None:
        self.mode = training
        for network in (self.subject.network, self.twin.network, *self.parts.modules()):
            network.train(training)

    def do_turn(self, value: float) -> None:
        self.value = value
        for network, loss in (
            (self.subject.network, self.loss),
            (self.twin.network, self.twin_loss),
            *((module, self.judge.loss) for module in self.parts.modules()),
        ):
            self.turn(network, loss)

    def turn(self, network: Any, loss: Any) -> None:
        zoo.turn(network, self.value)
        if isinstance(loss, modules.Weighted):
            loss.weight, loss.shift = self.value, 0.1 * self.value
        elif isinstance(loss, modules.WeightedModule):
            loss.weight = self.value
            loss.scale.fill_(2 * self.value)
        elif hasattr(loss, "turn"):
            loss.turn(self.value)
