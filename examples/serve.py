"""A learner behind HTTP: predictions at once, labels later, a kill, and a restart that loses and doubles nothing.

python examples/serve.py
"""

import http.client
import json
import math
import re
import subprocess
import sys
import tempfile
from pathlib import Path

CONFIG = """
[network]
inputs = 2
outputs = 1

[hyper]
lr = 0.05

[serve]
port = 0
checkpoint = 0.2
"""


def start(folder: Path) -> tuple[subprocess.Popen[str], http.client.HTTPConnection]:
    (folder / "agent.toml").write_text(CONFIG)
    hamlearn = [sys.executable, "-c", "from hamlearn.cli import main; main()"]
    command = [*hamlearn, "serve", str(folder / "agent.toml"), "--out", str(folder / "agent")]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    line = server.stdout.readline()
    print(line.strip())
    found = re.search(r"127.0.0.1:(\d+)", line)
    assert found is not None
    return server, http.client.HTTPConnection("127.0.0.1", int(found[1]))


def ask(link: http.client.HTTPConnection, path: str, value: object = None) -> dict:
    headers = {"content-type": "application/json"}
    link.request("GET" if value is None else "POST", path, None if value is None else json.dumps(value), headers)
    return json.load(link.getresponse())


def sample(k: int) -> dict:
    u = [math.sin(0.1 * k), math.cos(0.1 * k)]
    return {"u": u, "target": [u[0] * u[1]], "id": k}


def main() -> list[float]:
    """The losses of the first 300 requests."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        server, link = start(folder)
        losses = [ask(link, "/predict", sample(k))["loss"] for k in range(300)]
        print(f"loss of the first ten {sum(losses[:10]) / 10:.4f}, of the last ten {sum(losses[-10:]) / 10:.4f}")
        ask(link, "/predict", {"u": [0.3, 0.4], "id": "later"})
        print("its label, when it is known:", ask(link, "/label", {"id": "later", "target": [0.12]}))

        link.close()
        server.kill()
        server.communicate()
        server, link = start(folder)
        saved = ask(link, "/state")["checkpoint"]
        print(f"killed; the checkpoint reaches sample {saved['position']}, id {saved['last_id']!r}")
        again = [ask(link, "/predict", sample(k)) for k in range(300)]
        seen = sum("seen" in answer for answer in again)
        print(f"all sent again: {seen} had been seen, and were not learned twice")
        state = ask(link, "/state")
        print(f"samples {state['position']}, time {state['t']}")

        link.close()
        server.terminate()
        server.communicate()
        print(f"stopped; exit code {server.returncode}")
    return losses


if __name__ == "__main__":
    main()
