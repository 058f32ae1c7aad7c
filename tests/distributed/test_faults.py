"""What befalls one rank ends the pipeline on all of them, by name and in time; torchrun takes it up again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import hamlearn as hl
from benchmarks import _faulty_rank
from hamlearn.distributed import PipelineLearner
from hamlearn.distributed.storage import complete
from hamlearn.local import LocalLearner
from tests.distributed import jobs
from tests.distributed.ranks import free_port, launch

ROOT = Path(__file__).parents[2]
OWN = {"kill": None, "stop": None, "stream": "OSError", "cut": "RankError", "disk": "CheckpointError"}


@pytest.mark.parametrize(("kind", "victim"), [("kill", 0), ("stop", 2), ("stream", 0), ("cut", 2), ("disk", 0)])
def test_a_fault_of_one_rank_is_a_named_error_on_every_other_within_the_time_limit(
    kind: str, victim: int, tmp_path: Path
) -> None:
    lost = victim if OWN[kind] is None else None
    outcomes = launch(jobs.struck, 3, tmp_path, kind, victim, str(tmp_path / "saved"), limit=30, lost=lost)
    for rank, outcome in enumerate(outcomes):
        expected = {OWN[kind]} if rank == victim else {"RankError", "CheckpointError"}
        assert outcome.error in expected, (rank, outcome.message)
        if rank != victim:
            # Four seconds of patience; the rest is for the start and for a machine that is busy.
            assert outcome.seconds < 20
    # The second checkpoint may have been under way; whatever looks complete is.
    whole = complete(tmp_path / "saved")
    assert [path.name for path in whole] in (["tick-000000000010"], ["tick-000000000010", "tick-000000000020"])
    for path in whole:
        learner = PipelineLearner(jobs.net(), jobs.mse, jobs.hyper(), groups=3, align=True)
        learner.load(path)
        assert learner.position == learner.ticks == int(path.name.removeprefix("tick-"))


def test_a_rank_whose_disk_is_full_says_so_though_a_neighbour_that_heard_first_is_gone(tmp_path: Path) -> None:
    outcomes = launch(jobs.struck, 3, tmp_path, "disk", 0, str(tmp_path / "saved"), True, limit=30)
    assert outcomes[0].error == "CheckpointError"
    assert "rank 0: [Errno 27]" in outcomes[0].message


def test_every_rank_hears_of_a_lost_one_within_the_time_limit_though_a_checkpoint_is_under_way(
    tmp_path: Path,
) -> None:
    outcomes = launch(jobs.lost_while_saving, 4, tmp_path, str(tmp_path), limit=60, lost=3)
    assert [outcome.error for outcome in outcomes] == ["RankError"] * 3 + [None]
    # Half of the limit is for a checkpoint that may have failed; ranks do not wait one after the other.
    assert all(float(outcome.message) < 6 for outcome in outcomes[:3]), [o.message for o in outcomes]


def idle(every: int) -> tuple[nn.Sequential, list[int]]:
    """The network of the faulty ranks with `every` − 1 idle nodes in its middle, and its groups."""
    layers = nn.Sequential()
    for name, layer in _faulty_rank.network().named_children():
        for k in range(every - 1 if len(layers) == 4 else 0):
            layers.add_module(f"idle {k}", nn.Identity())
        layers.add_module(name, layer)
    return layers, list(range(4, 4 + every))


@pytest.mark.slow
@pytest.mark.parametrize("every", [1, 4])
def test_two_agents_of_torchrun_start_a_killed_rank_again_and_weights_end_as_if_nothing_had_happened(
    every: int, tmp_path: Path
) -> None:
    """Each agent with one rank, as on two machines; the address of the meeting point is all that they share."""
    (tmp_path / "plan").mkdir()
    (tmp_path / "plan" / "0.fault").write_text(json.dumps({"kind": "kill", "rank": 1, "sample": 25}))
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    settings = {"PYTHONPATH": paths, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--rdzv-id", "job"]
    command += ["--local-addr", "127.0.0.1", "--max-restarts", "2"]
    command += ["-m", "benchmarks._faulty_rank", str(tmp_path), "--samples", "60"]
    command += ["--ticks-per-message", str(every)]
    logs = [tmp_path / f"agent-{k}.txt" for k in range(2)]
    agents = []
    for path in logs:
        with path.open("w") as log:
            agents.append(subprocess.Popen(command, env=os.environ | settings, stdout=log, stderr=log))
    try:
        codes = [agent.wait(timeout=240) for agent in agents]
    finally:
        for agent in agents:
            agent.terminate()
    assert codes == [0, 0], [path.read_text()[-2000:] for path in logs]
    assert (tmp_path / "plan" / "0.struck").exists()
    # Where ticks are quick, the checkpoint of sample 20 is still being written when the other rank dies.
    told = (tmp_path / "errors-0.txt").read_text()
    assert told.startswith("RankError: rank 1") or (every > 1 and told.startswith("CheckpointError: cannot save"))
    module, groups = idle(every)
    hyper = hl.Hyper(eta=0.5, eta_z=0.0)
    local = LocalLearner(module, nn.functional.mse_loss, hyper, groups=groups, align=True, stacked=False)
    list(local.run(_faulty_rank.Source(60)))
    finals = [torch.load(tmp_path / f"final-{rank}.pt") for rank in range(2)]
    theta, omega = (finals[0][kind] | finals[1][kind] for kind in ("theta", "omega"))
    assert all(torch.equal(theta[name], w) for name, w in local.module.named_parameters())
    assert theta.keys() == omega.keys() == local.state.omega.keys()
    assert all(torch.equal(omega[name], w) for name, w in local.state.omega.items())
