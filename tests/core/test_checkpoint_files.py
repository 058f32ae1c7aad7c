"""The files themselves: all of them or nothing is believed, kept and left behind."""

import collections
import errno
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils import _pytree

import hamlearn as hl
from hamlearn.errors import CheckpointError
from tests.checkpoints import Watch, assemble, parse
from tests.fuzz.checkpoint_subjects import Pair, PairCell, trained


class Reading(NamedTuple):
    """An input of two parts."""

    first: torch.Tensor
    second: torch.Tensor


class Sums(nn.Module):
    """A cell that adds up whatever the input is made of."""

    def __init__(self):
        super().__init__()
        self.cell = nn.RNNCell(3, 2)

    def initial_state(self, u):
        return torch.zeros(2, 2)

    def forward(self, u, h):
        return self.cell(sum(leaf for leaf in _pytree.tree_leaves(u) if isinstance(leaf, torch.Tensor)), h)


def total(y, target):
    return sum((y - leaf).pow(2).mean() for leaf in _pytree.tree_leaves(target) if isinstance(leaf, torch.Tensor))


def summing(credit=None):
    torch.manual_seed(0)
    network = hl.Network.recurrent(Sums())
    return hl.Learner(network, total, hl.Hyper(beta=0.1), "sequential", credit or hl.Echo())


def refused(learner, path, message):
    watch = Watch(learner)
    before, state = watch.look(), torch.get_rng_state()
    with pytest.raises(CheckpointError, match=f"(?s){message}"):
        learner.load(path)
    assert before == watch.look()
    assert torch.equal(state, torch.get_rng_state())


def test_one_changed_bit_of_any_tensor_or_of_the_header_is_refused_by_the_digest(tmp_path):
    path, learner = tmp_path / "checkpoint", trained("joined echo", 3, 6)
    learner.save(path)
    whole = path.read_bytes()
    head = 8 + int.from_bytes(whole[:8], "little")
    text = whole.index(b"fresh")
    for place in (text + 12, head + 5, (head + len(whole)) // 2, len(whole) - 1):
        spoiled = bytearray(whole)
        spoiled[place] ^= 1
        path.write_bytes(spoiled)
        refused(learner, path, "not as learner.save.. wrote it.*digest.*Restore it from a copy")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("t", "x", "t is 'x'"),
        ("t", -1.0, "t is -1.0"),
        ("updates", 2.5, "updates is 2.5"),
        ("fresh", 0, "fresh is 0"),
        ("reader", {"position": -1, "stream": None, "skip": 0}, "position in the stream is -1"),
        ("state_tree", {"tuple": [{"value": 0}, {"value": 0}]}, "is not that of 2 tensors"),
        ("memory", None, "the memory is None"),
        ("memory", {"tokens": [], "since": 5}, "0 tokens, 5 since the last echo"),
        ("model", [], "parameter or buffer"),
    ],
)
def test_a_header_that_cannot_be_is_refused_though_its_digest_fits(tmp_path, key, value, message):
    path, learner = tmp_path / "checkpoint", trained("joined echo", 3, 6)
    learner.save(path)
    header, tensors = parse(path.read_bytes())
    if key == "memory" and value:
        tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith("memory/")}
    path.write_bytes(assemble(header | {key: value}, tensors))
    refused(learner, path, message)


def test_a_file_that_fails_while_its_tokens_run_leaves_the_learner_able_to_end_its_own_sequence(tmp_path):
    path, learner = tmp_path / "checkpoint", trained("joined echo", 3, 6)
    learner.save(path)
    header, tensors = parse(path.read_bytes())
    tensors["memory/2/u/0"] = torch.zeros(2, 5)
    path.write_bytes(assemble(header, tensors))
    one, other = trained("joined echo", 4, 5), trained("joined echo", 4, 5)
    refused(one, path, "could not take")
    last = hl.Sample({"x": torch.ones(2, 3), "step": 3}, torch.zeros(2, 2), boundary=True)
    for each in (one, other):
        torch.manual_seed(1)
        each.step(last)
    for weight, same in zip(one.network.parameters(), other.network.parameters(), strict=True):
        assert torch.equal(weight, same)


def test_a_file_that_names_a_module_does_not_have_it_imported(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "planted.py").write_text(
        "from typing import NamedTuple\nclass Pair(NamedTuple):\n    fast: int\n    slow: int"
    )
    path, learner = tmp_path / "checkpoint", trained("joined echo", 3, 6)
    learner.save(path)
    header, tensors = parse(path.read_bytes())
    by_name = {"namedtuple": "planted:Pair", "items": [{"value": 0}, {"value": 1}]}
    path.write_bytes(assemble(header | {"state_tree": by_name}, tensors))
    refused(learner, path, "'planted:Pair'.*not defined in this program")
    _, spec = _pytree.tree_flatten(collections.defaultdict(dict, a=0, b=1))
    by_factory = _pytree.treespec_dumps(spec).replace("builtins", "planted")
    assert "planted" in by_factory
    path.write_bytes(assemble(header | {"state_tree": by_factory}, tensors))
    refused(learner, path, "does not describe")
    assert "planted" not in sys.modules


@pytest.mark.parametrize("credit", [hl.Forward(), hl.Echo(), hl.Echo(truncate=2)], ids=repr)
@pytest.mark.parametrize("given", [None, Pair(torch.zeros(2, 2), torch.zeros(2, 2))], ids=["found", "given"])
def test_a_state_that_is_a_named_tuple_is_saved_and_loaded_bit_for_bit(tmp_path, credit, given):
    def make():
        network = hl.Network.recurrent(PairCell(), nn.Linear(2, 2), h0=given)
        return hl.Learner(network, nn.functional.mse_loss, hl.Hyper(beta=0.1), "sequential", credit)

    sample = hl.Sample(torch.ones(2, 3) * torch.tensor([[1.0], [2.0]]), torch.ones(2, 2))
    learner, again = make(), make()
    for _ in range(3):
        learner.step(sample)
    learner.save(tmp_path / "checkpoint")
    again.load(tmp_path / "checkpoint")
    assert type(again.state.h) is Pair
    for each in (learner, again):
        torch.manual_seed(1)
        each.step(sample)
    assert torch.equal(learner.state.h.slow, again.state.h.slow)
    assert all(map(torch.equal, learner.network.parameters(), again.network.parameters()))


@pytest.mark.parametrize(
    "tree",
    [
        lambda x: Reading(x, 2 * x),
        lambda x: {"b": x, "a": (x, [2 * x])},
        lambda x: collections.OrderedDict(b=x, a=2 * x),
        lambda x: {1: x, 0: 2 * x},
        lambda x: (x, 3, 0.1, "text", None, True),
    ],
)
def test_inputs_and_targets_that_wait_for_an_echo_come_back_exactly_as_they_were(tmp_path, tree):
    learner, again = summing(), summing()
    u, target = tree(torch.randn(2, 3)), tree(torch.randn(2, 2))
    learner.step(hl.Sample(u, target, tau=0.5))
    learner.save(tmp_path / "checkpoint")
    again.load(tmp_path / "checkpoint")
    (token,) = again._eager.parts.order.tokens
    for was, now in ((u, token.sample.u), (target, token.sample.target)):
        (leaves, spec), (found, same) = _pytree.tree_flatten(was), _pytree.tree_flatten(now)
        assert spec == same
        assert type(was) is type(now)
        pairs = list(zip(leaves, found, strict=True))
        assert all(
            torch.equal(a, b) if isinstance(a, torch.Tensor) else (type(a), a) == (type(b), b) for a, b in pairs
        )
    assert token.sample.tau == 0.5


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        (lambda x: collections.defaultdict(list, a=x), "a collections.defaultdict cannot be written down: use"),
        (lambda x: collections.deque([x]), "a collections.deque cannot be written down"),
        (lambda x: (x, np.ones(2)), "a numpy.ndarray cannot be written down"),
        (lambda x: {(0, 1): x}, r"the key \(0, 1\) of a dict"),
    ],
)
def test_what_could_not_come_back_exactly_is_refused_when_it_is_saved(tmp_path, tree, message):
    path, learner = tmp_path / "checkpoint", summing()
    learner.save(path)
    old = path.read_bytes()
    learner.step(hl.Sample(tree(torch.randn(2, 3)), torch.zeros(2, 2)))
    with pytest.raises(CheckpointError, match=f"cannot save .*checkpoint: {message}"):
        learner.save(path)
    assert path.read_bytes() == old


def fails(path, learner, message):
    """A save that fails names path, cause and remedy, and leaves the old file and nothing beside it."""
    old = path.read_bytes()
    with pytest.raises(CheckpointError, match=rf"cannot save {path}: {message}"):
        learner.save(path)
    assert path.read_bytes() == old
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_a_file_that_grows_beyond_its_limit_leaves_the_old_one_and_no_litter(tmp_path):
    path, learner = tmp_path / "checkpoint", summing()
    learner.save(path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        fails(path, learner, "File too large. What was there before is as it was. Make room on that disk")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_full_disk_leaves_the_old_file_and_no_litter(tmp_path, monkeypatch):
    path, learner = tmp_path / "checkpoint", summing()
    learner.save(path)

    def full(path, mode="r", *args, **kwargs):
        return opened(Path("/dev/full") if "w" in mode else path, mode, *args, **kwargs)

    opened = Path.open
    monkeypatch.setattr(Path, "open", full)
    fails(path, learner, "No space left on device.*Make room on that disk, or save to another one")


def test_a_disk_that_fails_when_it_is_forced_to_write_leaves_the_old_file_and_no_litter(tmp_path, monkeypatch):
    path, learner = tmp_path / "checkpoint", summing()
    learner.save(path)

    def failing(handle):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", failing)
    fails(path, learner, "Input/output error.*Look at the disk")


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path, monkeypatch):
    path, learner = tmp_path / "checkpoint", summing()
    learner.save(path)

    def closed(path, mode="r", *args, **kwargs):
        if "w" in mode:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return opened(path, mode, *args, **kwargs)

    opened = Path.open
    monkeypatch.setattr(Path, "open", closed)
    fails(path, learner, f"Read-only file system.*Allow writing to {tmp_path}, or save elsewhere")


def test_a_folder_in_the_place_of_the_file_is_named(tmp_path):
    with pytest.raises(CheckpointError, match="it is a folder"):
        summing().save(tmp_path)


KILLED = """
import os, pathlib, random, signal, sys, time, torch, hamlearn as hl
torch.set_num_threads(1)
folder = pathlib.Path(sys.argv[1])
network = hl.Network.feedforward(torch.nn.Linear(300, 300))
learner = hl.Learner(network, torch.nn.functional.mse_loss, hl.Hyper())
sample = hl.Sample(torch.ones(1, 300), torch.zeros(1, 300))
learner.save(folder / "checkpoint")
random.seed(0)
reached = 0.0
for _ in range(20):
    child = os.fork()
    if child == 0:
        while True:
            learner.step(sample)
            learner.save(folder / "checkpoint")
    time.sleep(random.uniform(0.005, 0.06))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    learner.load(folder / "checkpoint")
    assert learner.state.t >= reached
    reached = learner.state.t
print(reached > 0)
learner.save(folder / "checkpoint")
print(*os.listdir(folder))
"""


def test_killed_at_random_instants_the_file_is_the_old_or_the_new_one_and_nothing_piles_up(tmp_path):
    run = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], capture_output=True, text=True, check=True)
    progress, left = run.stdout.splitlines()
    assert progress == "True"
    assert left == "checkpoint"
