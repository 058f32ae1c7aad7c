"""The tasks are what they say: equations, episodes, floors, and a maze whose rules hold."""

import copy
import functools
import itertools
import json
import math

import pytest
import torch
from torch import nn

import hamlearn as hl
from benchmarks import _credit_mazes, _credit_study, credit
from benchmarks._credit_contenders import CONTENDERS, taking_part
from benchmarks._credit_study import best
from benchmarks.credit_tasks import series, symbols, tmaze
from benchmarks.credit_tasks.looped import Looped, eagerly
from benchmarks.credit_tasks.nets import DenseTanh, Restarting
from benchmarks.credit_tasks.rules import Own


@pytest.mark.parametrize("make", [series.henon, series.mackey_glass, series.lorenz])
def test_a_series_is_normalised_lane_by_lane_foretold_by_one_step_and_restarted_every_200(make):
    task = make(1000, 3)
    values = torch.cat([task.u, task.target[-1:]]).double()
    assert torch.allclose(values.mean(0), torch.zeros(8, 1).double(), atol=1e-6)
    assert torch.allclose(values.var(0, correction=0), torch.ones(8, 1).double(), atol=1e-6)
    assert torch.equal(task.u[1:], task.target[:-1])
    assert task.restart[:, 0].nonzero().flatten().tolist() == [0, 200, 400, 600, 800]
    assert task.together
    ends = [k for k, sample in enumerate(task.samples()) if sample.boundary]
    assert ends == [199, 399, 599, 799, 999]
    # Lanes are not copies of each other, and a seed is a task.
    assert not torch.allclose(task.u[:, 0], task.u[:, 1], atol=0.1)
    assert torch.equal(make(1000, 3).u, task.u)


def test_the_series_obey_their_equations(monkeypatch):
    monkeypatch.setattr(series, "_foretold", lambda name, values: values)
    same = functools.partial(torch.allclose, rtol=0, atol=1e-12)
    x = series.henon(500)
    assert torch.equal(x[0], 0.1 + 0.01 * torch.arange(8).double())
    assert same(x[2:], 1 - 1.4 * x[1:-1] ** 2 + 0.3 * x[:-2])
    x = series.mackey_glass(500)
    assert 1.2 <= x[0].min() < x[0].max() <= 1.4
    assert same(x[17:], 0.9 * x[16:-1] + 0.2 * x[:-17] / (1 + x[:-17] ** 10))
    # Of Lorenz one of three coordinates is seen, at every second step: the others follow from it.
    kept = series.lorenz(500, seed=4)
    draw = torch.Generator().manual_seed(4)
    state = 1 + 0.1 * torch.randn(3, 8, generator=draw, dtype=torch.float64)
    for k in range(300):
        if k >= 100 and k % 2 == 0:
            assert torch.allclose(kept[(k - 100) // 2], state[0], rtol=0, atol=1e-9)
        x, y, z = state
        state = state + 0.01 * torch.stack([10 * (y - x), x * (28 - z) - y, x * y - 8 / 3 * z])


@pytest.mark.parametrize("delay", [1, 10])
def test_recall_asks_for_the_cue_of_the_episode_at_the_go_line(delay):
    task, length = symbols.recall(5 * (delay + 2), delay, seed=1), delay + 2
    cues, go, bit = task.u[..., :4], task.u[..., 4], task.u[..., 5]
    for episode in range(5):
        first, last = episode * length, (episode + 1) * length - 1
        assert torch.equal(cues[first].argmax(-1), task.target[last])
        assert (cues[first].sum(-1) == 1).all()
        assert not cues[first + 1 : last + 1].any()
        assert go[last].all()
        assert not go[first:last].any()
        assert task.has[last]
        assert not task.has[first:last].any()
    assert 0 < bit.mean() < 1
    assert task.restart is None


def test_a_dense_net_starts_with_the_spectral_radius_that_is_asked_for_and_with_less_otherwise():
    torch.manual_seed(0)
    n = 400
    usual, wide = DenseTanh(6, n), DenseTanh(6, n, radius=2.0)
    bound = 1 / math.sqrt(n)
    assert usual.recurrent.abs().max() <= bound
    assert wide.weight.abs().max() <= bound
    # The law of the circle: deviation times √n.
    for cell, radius in ((usual, 1 / math.sqrt(3)), (wide, 2.0)):
        assert torch.linalg.eigvals(cell.recurrent).abs().max().item() == pytest.approx(radius, rel=0.1)
        assert cell.recurrent.std().item() == pytest.approx(radius * bound, rel=0.01)


def test_a_dense_net_of_a_given_radius_learns_recall_unless_others_are_named_and_windows_try_one_rate_more():
    rules, radii = ("frozen", "cleared", "snap1", "tbptt"), ("0.9", "1")
    here = {f"{rule}-radius-{radius}" for rule in rules for radius in radii}
    for task in _credit_study.TASKS:
        assert set(taking_part(task)) == set(CONTENDERS) - (set() if task.startswith("recall") else here)
    for rule in here:
        usual, _, radius = rule.partition("-radius-")
        assert CONTENDERS[rule].cell == f"dense, radius {radius}"
        assert CONTENDERS[rule].rule == CONTENDERS[usual].rule
        assert CONTENDERS[rule].network(symbols.recall(24, 10), 0)[0].recurrent.std().item() == pytest.approx(
            float(radius) / 8, rel=0.05
        )
    recall, other = symbols.recall(24, 10), symbols.anbn(24)
    for rule in ("tbptt", "tbptt-radius-1"):
        assert CONTENDERS[rule].grid(recall) == (3e-4, 1e-3, 3e-3, 1e-2)
        assert CONTENDERS[rule].grid(other) == (1e-3, 3e-3, 1e-2)
    assert CONTENDERS["snap1"].grid(recall) == CONTENDERS["snap1-radius-1"].grid(recall) == (3e-4, 1e-3, 3e-3)


def test_a_report_names_the_command_that_it_was_made_by_rules_and_seeds_included(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(_credit_study, "study", lambda *given: (asked.append(given[:3]), {"rows": []})[1])
    monkeypatch.setattr(credit._credit_views, "show", lambda found, console: None)
    monkeypatch.setattr(credit._credit_views, "figure", lambda path, found: None)
    for options in ({}, {"rules": ["snap1", "rtu"], "seeds": 5, "rates": [1e-3, 0.03]}):
        credit.run(tmp_path, tasks=["recall-20"], **options)
        (path,) = tmp_path.glob("*-credit-recall-20.json")
        assert json.loads(path.read_text())["rerun"] == "hamlearn bench credit --task recall-20" + (
            " --rule snap1 --rule rtu --seeds 5 --rate 0.001 --rate 0.03" if options else ""
        )
    assert asked == [("recall-20", list(CONTENDERS), 3), ("recall-20", ["snap1", "rtu"], 5)]


def test_rates_that_are_given_are_tried_in_the_place_of_a_rule_s_own():
    for study, task in ((_credit_study.study, "anbn"), (_credit_mazes.study, "t-maze-10")):
        (row,) = study(task, ["sensitivity"], 1, True, lambda told: None, (1e-3, 2e-3))["rows"]
        assert {float(rate) for rate in row["grid"]} == {1e-3, 2e-3}


def test_the_floors_of_delayed_add_are_what_knowing_the_lags_costs():
    task = symbols.delayed_add(20_000, seed=2)
    chance = task.target.clamp(1e-7, 1 - 1e-7)
    late = torch.cat([torch.zeros(5, 8, 1), task.u[:-5]])
    first_only = 0.5 + 0.5 * late - 0.125
    nothing = torch.full_like(chance, 0.625)
    for known, floor in ((nothing, "neither lag"), (first_only, "the first"), (chance, "both")):
        cost = task.measured(torch.logit(known.double()), task.target)
        assert cost == pytest.approx(symbols.FLOORS[floor], abs=0.003)


def test_every_lane_of_anbn_has_whole_strings_and_restarts_at_their_first_symbol():
    task = symbols.anbn(400, seed=5)
    assert not task.together
    for lane in range(8):
        starts = task.restart[:, lane].nonzero().flatten().tolist()
        text = "".join("ab."[int(s)] for s in task.u[:, lane].argmax(-1))
        for begin, end in itertools.pairwise(starts):
            n = (end - begin - 1) // 2
            assert 1 <= n <= 16
            assert text[begin:end] == "a" * n + "b" * n + "."
    assert torch.equal(task.u[1:].argmax(-1), task.target[:-1])
    assert torch.equal(task.samples()[7].u[:, -1], task.restart[7].float())


def test_the_score_is_taken_over_the_last_targets_and_the_curve_over_all():
    task = symbols.recall(1200, 10)
    right = nn.functional.one_hot(task.target, 4).float()
    assert task.score(right) == 1
    late = right.clone()
    late[:1070] = -late[:1070]
    assert task.score(late) == 1
    assert task.curve(late, points=10) == [*[0.0] * 8, 0.1, 1.0]
    assert best({0.1: 0.5, 0.2: math.nan, 0.3: 0.7}, higher=True) == 0.3


@pytest.mark.parametrize("credit", [hl.Cleared(), hl.Forward(), hl.Echo(every=4), hl.Sensitivity()], ids=repr)
def test_a_lane_that_restarts_learns_as_one_that_a_boundary_restarts(credit):
    torch.manual_seed(0)
    cell = hl.cells.ColumnarGRU(2, 3).double()
    readout = nn.Linear(3, 1).double()
    hyper = hl.Hyper.from_sgd(lr=0.1)
    generator = torch.Generator().manual_seed(0)
    u = torch.randn(24, 1, 2, generator=generator).double()
    target = torch.randn(24, 1, 1, generator=generator).double()
    plain = hl.Network.recurrent(copy.deepcopy(cell), copy.deepcopy(readout))
    flagged = hl.Network.recurrent(Restarting(copy.deepcopy(cell)), copy.deepcopy(readout))
    mse = nn.functional.mse_loss
    learners = [hl.Learner(network, mse, hyper, credit=credit) for network in (plain, flagged)]
    for k in range(24):
        flag = torch.full((1, 1), float(k % 8 == 0)).double()
        one = learners[0].step(hl.Sample(u[k], target[k], boundary=k % 8 == 7))
        other = learners[1].step(hl.Sample(torch.cat([u[k], flag], -1), target[k]))
        assert torch.allclose(one.y, other.y, rtol=0, atol=1e-12)


def test_the_maze_rewards_the_turn_that_its_start_told():
    maze = tmaze.Maze(3)
    goal = torch.tensor([0.0, 1.0])
    position = clock = torch.zeros(2)
    assert maze.observe(position, goal).tolist() == [[1, 0, 0, 0], [0, 1, 0, 0]]
    # A turn in the corridor does nothing but cost.
    position, clock, reward, done, _ = maze.step(position, goal, clock, torch.tensor([1, 2]))
    assert position.tolist() == [0, 0]
    assert reward.tolist() == pytest.approx([-0.1, -0.1])
    for _ in range(3):
        position, clock, reward, done, _ = maze.step(position, goal, clock, torch.tensor([0, 0]))
        assert not done.any()
    assert maze.observe(position, goal).tolist() == [[0, 0, 0, 1]] * 2
    _, _, reward, done, success = maze.step(position, goal, clock, torch.tensor([1, 1]))
    assert reward.tolist() == pytest.approx([4.0, -0.4])
    assert done.tolist() == [1, 1]
    assert success.tolist() == [1, 0]
    # Six steps are all that a corridor of three gives.
    for _ in range(2):
        position, clock, reward, done, success = maze.step(position, goal, clock, torch.tensor([0, 0]))
    assert done.tolist() == [1, 1]
    assert success.tolist() == [0, 0]
    assert maze.observe(torch.tensor([1.0]), torch.tensor([1.0])).tolist() == [[0, 0, 1, 0]]


def test_an_agent_learns_by_the_gradient_of_its_loss_and_runs_compiled():
    torch.manual_seed(0)
    cell = Restarting(hl.cells.ColumnarGRU(4, 5, t_max=3))
    agent = tmaze.ActorCritic(cell, Own(), tmaze.Maze(2), lr=1e-2)
    generator = torch.Generator().manual_seed(1)
    begin = agent.begin(torch.randint(2, (tmaze.LANES,), generator=generator).float())
    samples = tmaze._draw(agent, 50, generator)
    loop = Looped(agent.act, begin, [row[0] for row in samples])
    done, _ = loop(samples)
    assert 50 * tmaze.LANES / 4 * 0.5 < done.sum() < 50 * tmaze.LANES / 2
    after, (eager, _) = eagerly(agent.act, begin, samples)
    assert torch.equal(done, eager)
    for one, other in zip(loop.carry, after, strict=True):
        assert torch.allclose(one, other, atol=2e-4)


def test_an_agents_gradient_is_that_of_its_loss_through_the_whole_episode():
    torch.manual_seed(0)
    length, lanes = 3, tmaze.LANES
    cell, generator = hl.cells.ColumnarGRU(4, 5, t_max=3).double(), torch.Generator().manual_seed(1)
    agent = tmaze.ActorCritic(Restarting(cell), Own(), tmaze.Maze(length), lr=0.0)
    agent.readout.double()
    goal = torch.randint(2, (lanes,), generator=generator).double()
    samples = [row.double() for row in tmaze._draw(agent, 40, generator)]
    found = []
    agent.adam.step = lambda theta, moments, grads: (theta, (found.append(grads), moments)[1])
    _, (ended, _) = eagerly(agent.act, agent.begin(goal), samples)
    # The same by autograd through all steps since the restart, in a maze written down once more, lane by lane.
    weights = list(agent.net.parameters())
    places, clocks, sides = [0] * lanes, [0] * lanes, [int(side) for side in goal]
    timed_out = won = 0

    def seen():
        lines = [side if at == 0 else 3 if at == length else 2 for at, side in zip(places, sides, strict=True)]
        return nn.functional.one_hot(torch.tensor(lines), 4).double()

    h = cell(seen(), torch.zeros(lanes, 5).double())
    for chance, fresh, grads in zip(samples[0], samples[1], found, strict=True):
        y = agent.readout(h)
        policy = torch.softmax(y[:, :3], -1)
        actions = [int((chance[b] > policy[b].cumsum(-1)[:2]).sum()) for b in range(lanes)]
        rewards, done = [-0.1] * lanes, [False] * lanes
        for b, action in enumerate(actions):
            clocks[b] += 1
            if places[b] == length and action > 0:
                rewards[b], done[b] = (4.0 if action == 1 + sides[b] else -0.4), True
                won += rewards[b] > 0
            elif places[b] < length and action == 0:
                places[b] += 1
            timed_out += clocks[b] == 2 * length and not done[b]
            if done[b] or clocks[b] == 2 * length:
                done[b], places[b], clocks[b], sides[b] = True, 0, 0, int(fresh[b])
        over = torch.tensor(done).double()
        ahead = cell(seen(), (1 - over).unsqueeze(-1) * h)
        wanted = (
            torch.tensor(rewards, dtype=torch.float64) + 0.99 * (1 - over) * agent.readout(ahead)[:, 3].detach()
        )
        delta, chosen = wanted - y[:, 3], policy[range(lanes), actions].log()
        entropy = -(policy * policy.log()).sum(-1)
        loss = (-delta.detach() * chosen + 0.5 * delta**2 - 0.01 * entropy).mean()
        for one, other in zip(grads, torch.autograd.grad(loss, weights, retain_graph=True), strict=True):
            assert torch.allclose(one, other, rtol=0, atol=1e-12)
        h = ahead
    assert timed_out > 0
    assert won > 0
    assert ended.sum() > timed_out + won


def test_a_frozen_agent_moves_its_readout_alone():
    torch.manual_seed(0)
    cell = Restarting(DenseTanh(4, 5))
    agent = tmaze.ActorCritic(cell, Own(), tmaze.Maze(2), lr=1e-2, frozen=True)
    carry = agent.begin(torch.zeros(tmaze.LANES))
    after = agent.act(*carry, *(row[0] for row in tmaze._draw(agent, 1, torch.Generator())))
    for name, old, new in zip(agent.names, carry, after, strict=False):
        assert torch.equal(old, new) is name.startswith("cell."), name


def test_the_share_of_successes_is_of_the_last_400_episodes():
    episodes = [(k, False) for k in range(300)] + [(k, True) for k in range(300, 900)]
    found = tmaze.shares(episodes)
    assert found[0] == (399, 0.25)
    assert found[-1] == (899, 1.0)
    assert tmaze.reached(found) == 300 + 380 - 1
    assert tmaze.shares(episodes[:399]) == []
    assert tmaze.reached([]) is None
