"""Examples that no drawing of the gallery runs as a whole run as a user would run them, and print something."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.test_pages import WHOLE

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted({path.name for path in (ROOT / "examples").glob("*.py")} - {job.source.name for job in WHOLE})


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_runs(name, tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error"}
    command = [sys.executable, ROOT / "examples" / name]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
