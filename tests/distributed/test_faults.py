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
from hamlearn.distributed.folders import complete
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
    # On a full disk the first checkpoint at that size fails; before it, all that looks complete is.
    whole = complete(tmp_path / "saved")
    assert [path.name for path in whole] == ["tick-000000000010", "tick-000000000020"]
    for path in whole:
        learner = PipelineLearner(jobs.net(), jobs.mse, jobs.hyper(), groups=3)
        learner.load(path, drop=True)
        assert learner.position == learner.ticks == int(path.name.removeprefix("tick-"))


@pytest.mark.slow
def test_two_agents_of_torchrun_start_a_killed_rank_again_and_weights_end_as_if_nothing_had_happened(
    tmp_path: Path,
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
    assert (tmp_path / "errors-0.txt").read_text().startswith("RankError: rank 1")
    hyper, mse = hl.Hyper(eta=0.5, eta_z=0.0), nn.functional.mse_loss
    local = LocalLearner(_faulty_rank.network(), mse, hyper, groups=2, align=True, stacked=False)
    list(local.run(_faulty_rank.Source(60)))
    finals = [torch.load(tmp_path / f"final-{rank}.pt") for rank in range(2)]
    theta, omega = (finals[0][kind] | finals[1][kind] for kind in ("theta", "omega"))
    assert all(torch.equal(theta[name], w) for name, w in local.module.named_parameters())
    assert theta.keys() == omega.keys() == local.state.omega.keys()
    assert all(torch.equal(omega[name], w) for name, w in local.state.omega.items())
