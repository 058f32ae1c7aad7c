"""Agents by key over several processes learn what they learn in one, on torch.distributed and on Ray."""

from __future__ import annotations

import importlib.util
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import hamlearn as hl

SCRIPT = Path(__file__).parents[2] / "examples" / "agents_by_key.py"


@pytest.mark.parametrize("options", [[], ["--ray"]])
def test_agents_shared_out_by_key_end_as_in_one_process(options: list[str], tmp_path: Path) -> None:
    if options:
        pytest.importorskip("ray")
    spec = importlib.util.spec_from_file_location("agents_by_key", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    alone = example.Agents(tmp_path)
    for key, sample in example.events():
        alone.take(key, sample)
    expected = [f"{key}: weight {alone.learners[key].network.output.weight[0, 0]:.3f}" for key in example.KEYS]
    command = [sys.executable, str(SCRIPT), *options]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.stdout.splitlines() == expected, done.stderr


def test_the_package_itself_can_be_sent_to_another_process_by_name() -> None:
    assert pickle.loads(pickle.dumps(hl)) is hl
