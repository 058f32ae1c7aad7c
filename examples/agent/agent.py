"""Start and stop a broker, a simulated sensor, an agent that learns from it, and a page to watch.

    python examples/agent/agent.py start
    python examples/agent/agent.py stop

Stopped and started again, or killed, the agent continues where it was: nothing is lost, nothing learned twice.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
BROKER = 18830
"""The port that agent.toml and mosquitto.conf name."""
SBIN = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])


def main() -> None:
    options = argparse.ArgumentParser(description="An agent that learns from a sensor over MQTT.")
    options.add_argument("what", choices=["start", "stop"])
    options.add_argument("--out", type=Path, default=Path("out/agent"), help="folder of everything")
    options.add_argument("--broker", type=int, default=BROKER, help="port of the broker")
    options.add_argument("--page", type=int, default=18840, help="port of the page")
    given = options.parse_args()
    folder = given.out.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    stop(folder)
    if given.what == "start":
        start(folder, given.broker, given.page)


def start(folder: Path, port: int, page: int) -> None:
    mosquitto = shutil.which("mosquitto", path=SBIN)
    if mosquitto is None:
        sys.exit("The broker is missing: apt-get install mosquitto")
    hamlearn = [sys.executable, "-c", "from hamlearn.cli import main; main()"]
    broker, config, run = folder / "mosquitto.conf", folder / "agent.toml", folder / "run"
    run.mkdir(exist_ok=True)
    config.write_text((HERE / "agent.toml").read_text().replace(str(BROKER), str(port)))
    kept = f"persistence_location {folder}/\n"
    # A broker that is started by root gives its rights away, and could not write here.
    kept += "user root\n" if os.getuid() == 0 else ""
    broker.write_text((HERE / "mosquitto.conf").read_text().replace(str(BROKER), str(port)) + kept)
    launch(folder, "broker", [mosquitto, "-c", str(broker)])
    wait_for(port)
    # The agent first: the broker keeps what is published from its first subscription on.
    launch(folder, "agent", [*hamlearn, "run", str(config), "--resume", "--out", str(run), "--no-progress"])
    launch(folder, "sensor", [sys.executable, str(HERE / "sensor.py"), "--port", str(port)])
    launch(folder, "page", [*hamlearn, "watch", str(run), "--port", str(page)])
    wait_for(page)
    print(f"Learning. Watch it at http://127.0.0.1:{page}/, stop it by: python {sys.argv[0]} stop")


def launch(folder: Path, name: str, command: list[str]) -> None:
    with (folder / f"{name}.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    (folder / f"{name}.pid").write_text(str(process.pid))


def stop(folder: Path) -> None:
    """Stop whatever an earlier start left, the broker last; what is not yet in a checkpoint it keeps."""
    for name in ("page", "sensor", "agent", "broker"):
        path = folder / f"{name}.pid"
        if path.exists() and path.read_text().isdigit():
            end(int(path.read_text()))
        path.unlink(missing_ok=True)


def end(pid: int) -> None:
    for number, patience in ((signal.SIGTERM, 10.0), (signal.SIGKILL, 5.0)):
        try:
            os.kill(pid, number)
            until = time.monotonic() + patience
            while time.monotonic() < until:
                if os.waitpid(pid, os.WNOHANG)[0]:
                    return
                time.sleep(0.05)
        except ChildProcessError:
            # Started by another process: it is gone when it cannot be signalled any more.
            while time.monotonic() < until and lives(pid):
                time.sleep(0.05)
            if not lives(pid):
                return
        except ProcessLookupError:
            return


def lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        about = Path(f"/proc/{pid}/stat")
        # A process that has ended and was not waited for yet (a zombie) counts as ended.
        return not about.exists() or about.read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def wait_for(port: int) -> None:
    until = time.monotonic() + 120
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1.0).close()
        except OSError:
            if time.monotonic() > until:
                sys.exit(f"No server listens at port {port}: look at the .log files.")
            time.sleep(0.1)
        else:
            return


if __name__ == "__main__":
    main()
