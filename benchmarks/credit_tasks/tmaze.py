"""The T-maze, learned online by an actor-critic without replay: a loop of its own, maze and all.

An agent sees at the start of a corridor which way the goal lies, and has to turn that way at its end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.credit_tasks.looped import Looped
from benchmarks.credit_tasks.online import Online
from benchmarks.credit_tasks.rules import Rule

LANES = 16
ACTIONS = 3
"""Forward, left, right."""
OBSERVED = 4
"""One-hot: goal left or goal right, at the start; corridor; junction."""
DISCOUNT, ENTROPY = 0.99, 0.01
COUNTED = 400
"""Episodes that a share of successes is taken over."""
REACHED = 0.95


@dataclass(frozen=True)
class Maze:
    """A corridor of positions 0…`length`, with the junction at its end, for many agents at once.

    Forward adds one in the corridor, where turns do nothing; at the junction a turn ends the episode, and so do
    2·`length` steps. Reward: +4 for the right turn, −0.4 for the wrong one, −0.1 otherwise.
    """

    length: int

    def observe(self, position: Tensor, goal: Tensor) -> Tensor:
        """One-hot of four."""
        start, end = (position == 0).to(goal), (position == self.length).to(goal)
        return torch.stack([start * (1 - goal), start * goal, (1 - start) * (1 - end), end], -1)

    def step(
        self, position: Tensor, goal: Tensor, clock: Tensor, action: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """(position, clock, reward, done, success) after an action; what is done has yet to be put back."""
        junction = (position == self.length).to(goal)
        forward, turn = (action == 0).to(goal), (action != 0).to(goal)
        right = (action == 1 + goal.long()).to(goal)
        success = junction * turn * right
        reward = 4.0 * success - 0.4 * junction * turn * (1 - right) - 0.1 * (1 - junction * turn)
        clock = clock + 1
        done = torch.maximum(junction * turn, (clock >= 2 * self.length).to(goal))
        return position + (1 - junction) * forward, clock, reward, done, success


class ActorCritic(Online):
    """Policy and value, linear in what the cell shows, learned at every step.

    δ = r + 0.99 (1 − done) V⁺ − V with V⁺ held constant; the loss is −δ log π(a), with δ held constant, + ½δ²
    − 0.01 times the entropy, in the mean over lanes.

    Args:
        cell: A `Restarting` cell of 4 + 1 inputs.
        rule: Carries credit for the cell's weights.
        maze: The environment.
        lr: Adam's rate.
        frozen: Whether the cell's weights stay as they are.
    """

    def __init__(self, cell: Any, rule: Rule, maze: Maze, lr: float, frozen: bool = False) -> None:
        super().__init__(cell, nn.Linear(cell.hidden_size, ACTIONS + 1), rule, nn.functional.mse_loss, lr, frozen)
        self.maze = maze

    def begin(self, goal: Tensor) -> list[Tensor]:
        """The first carry: what is learned and carried, at the first observation; and the mazes."""
        zeros = torch.zeros_like(goal)
        u = self._seen(zeros, goal, torch.ones_like(goal))
        carry = self.start(u)
        theta, moments, h, carried, _ = self.parted(carry)
        with torch.no_grad():
            h, carried = self.rule.step(self.cell, u, h, carried, zeros.unsqueeze(-1).expand(-1, self.cell.units))
        return [*theta, *moments, *h, *carried, zeros, goal, zeros]

    def act(self, *given: Tensor) -> list[Tensor]:
        """(carry, chance, next goal, noise) to (carry, done, success): act, look, learn.

        `chance` is uniform in (0, 1), one for each lane, and chooses the action.
        """
        theta, moments, h, carried, rest = self.parted(given)
        position, goal, clock, chance, fresh, noise = rest
        with self.at(theta):
            with torch.no_grad():
                cumulated = torch.softmax(self.readout(self.shown(h))[..., :ACTIONS], -1).cumsum(-1)
                # Two of the three bounds: sums that end a little below 1 leave no gap.
                action = (chance.unsqueeze(-1) > cumulated[..., :-1]).long().sum(-1)
                position, clock, reward, done, success = self.maze.step(position, goal, clock, action)
                position, clock = (1 - done) * position, (1 - done) * clock
                goal = torch.where(done > 0, fresh, goal)
                h1, carried1 = self.rule.step(self.cell, self._seen(position, goal, done), h, carried, noise)
                ahead = self.readout(self.shown(h1))[..., ACTIONS]
                wanted = reward + DISCOUNT * (1 - done) * ahead

            def loss(y: Tensor) -> Tensor:
                log_policy, value = torch.log_softmax(y[..., :ACTIONS], -1), y[..., ACTIONS]
                delta = wanted - value
                chosen = (log_policy * nn.functional.one_hot(action, ACTIONS).to(y.dtype)).sum(-1)
                entropy = -(log_policy.exp() * log_policy).sum(-1)
                return (-delta.detach() * chosen + 0.5 * delta * delta - ENTROPY * entropy).mean()

            _, grads = self.owed(h, carried, loss)
        theta, moments = self.adam.step(theta, moments, grads)
        after = [*theta, *moments, *h1, *carried1, position, goal, clock]
        return [tensor.detach() for tensor in (*after, done, success)]

    def _seen(self, position: Tensor, goal: Tensor, restart: Tensor) -> Tensor:
        return torch.cat([self.maze.observe(position, goal), restart.unsqueeze(-1)], -1)


class Walk:
    """A compiled loop of an agent and its mazes; one recording serves all agents of one kind.

    Args:
        agent: One of them.
        chunk: Steps that are taken at a time.
    """

    def __init__(self, agent: ActorCritic, chunk: int = 2_000) -> None:
        self.chunk = chunk
        generator = torch.Generator().manual_seed(0)
        sample = [row[0] for row in _draw(agent, 1, generator)]
        self.loop = Looped(agent.act, agent.begin(sample[1]), sample)

    def __call__(self, agent: ActorCritic, steps: int, seed: int) -> list[tuple[int, bool]]:
        """Learn for so many steps: (step, whether it succeeded) of every episode, in order."""
        generator = torch.Generator().manual_seed(seed)
        self.loop.begin(agent.begin(torch.randint(2, (LANES,), generator=generator).float()))
        episodes: list[tuple[int, bool]] = []
        for begin in range(0, steps, self.chunk):
            done, success = self.loop(_draw(agent, min(self.chunk, steps - begin), generator))
            ended = (begin + done.nonzero()[:, 0]).tolist()
            episodes += zip(ended, (success[done > 0] > 0).tolist(), strict=True)
        return episodes


def _draw(agent: ActorCritic, count: int, generator: torch.Generator) -> list[Tensor]:
    """Chances of actions, next goals, and signs for rules that draw them."""
    chance = torch.rand(count, LANES, generator=generator)
    goal = torch.randint(2, (count, LANES), generator=generator).float()
    return [chance, goal, torch.zeros(count, LANES, 1)]


def shares(episodes: list[tuple[int, bool]]) -> list[tuple[int, float]]:
    """(step, share of successes among the last 400 episodes) from the 400th episode on."""
    won = torch.tensor([w for _, w in episodes], dtype=torch.float64)
    if len(won) < COUNTED:
        return []
    total = torch.cat([won.new_zeros(1), won.cumsum(0)])
    means = (total[COUNTED:] - total[:-COUNTED]) / COUNTED
    return [(episodes[k + COUNTED - 1][0], mean) for k, mean in enumerate(means.tolist())]


def reached(found: list[tuple[int, float]]) -> int | None:
    """Steps until the share was 0.95 first; `None` if it never was."""
    return next((step for step, share in found if share >= REACHED), None)
