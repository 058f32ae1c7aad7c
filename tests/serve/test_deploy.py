"""The files of examples/deploy: each can be read, agrees with the others, and names commands that exist."""

import configparser
import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
import typer.main
import yaml

from hamlearn.cli import app
from hamlearn.experiments.run.config import load as load_run
from hamlearn.serve import load

DEPLOY = Path(__file__).parents[2] / "examples" / "deploy"
UNITS = sorted(path.name for path in DEPLOY.glob("*.service"))


def unit(name):
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str
    parser.read_string((DEPLOY / name).read_text())
    return parser


def compose():
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text())


def instructions():
    text = (DEPLOY / "Containerfile").read_text().replace("\\\n", " ")
    return [line.split(maxsplit=1) for line in text.splitlines() if line and not line.startswith("#")]


def commands():
    found = [shlex.split(unit(name)["Service"]["ExecStart"]) for name in UNITS]
    found += [json.loads(rest) for word, rest in instructions() if word == "CMD"]
    for line in re.findall(r"hamlearn (?:serve|run) .*", (DEPLOY / "README.md").read_text()):
        found.append(shlex.split(line.partition("`")[0], comments=True))
    return [command[1:] for command in found]


@pytest.mark.parametrize("arguments", commands(), ids=" ".join)
def test_commands_and_their_options_exist(arguments):
    group = typer.main.get_command(app)
    command = group.commands[arguments[0]]
    given = command.make_context(arguments[0], arguments[1:]).params
    assert str(given["config"]).startswith("/etc/hamlearn/")
    assert (DEPLOY / given["config"].name).is_file()


def test_the_configurations_are_accepted(tmp_path):
    shutil.copy(DEPLOY / "serve.toml", tmp_path)
    settings = load(tmp_path / "serve.toml", host="0.0.0.0")
    assert settings.serve["behind_proxy"] is True
    named = {settings.tokens(name).relative_to(tmp_path) for name in ("learn_tokens", "predict_tokens")}
    readme = (DEPLOY / "README.md").read_text()
    assert all(f"> {path}" in readme for path in named)
    assert load_run(DEPLOY / "run.toml")["stream"]["kind"] == "mqtt"


@pytest.mark.parametrize("name", UNITS)
def test_units_keep_state_and_compiled_steps_where_systemd_makes_room_for_them(name):
    service = unit(name)["Service"]
    assert service["StateDirectory"] == service["CacheDirectory"] == "hamlearn"
    assert "XDG_CACHE_HOME=/var/cache/hamlearn" in service["Environment"]
    assert "--out /var/lib/hamlearn/" in service["ExecStart"]
    assert {"Unit", "Service", "Install"} == set(unit(name).sections())


def test_containers_agree_on_ports_users_and_folders():
    services, words = compose()["services"], dict(instructions())
    port = load(DEPLOY / "serve.toml").serve["port"]
    assert words["EXPOSE"] == str(port)
    assert services["caddy"]["environment"]["UPSTREAM"] == f"hamlearn:{port}"
    scrape = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())["scrape_configs"][0]
    assert scrape["static_configs"][0]["targets"] == [f"hamlearn:{port}"]
    # The server itself is reached through the proxy only.
    assert "ports" not in services["hamlearn"]
    assert f"127.0.0.1:{port}/readyz" in services["hamlearn"]["healthcheck"]["test"][-1]
    build = services["hamlearn"]["build"]
    assert (DEPLOY / build["context"] / build["dockerfile"]).resolve() == (DEPLOY / "Containerfile").resolve()
    for mount in [one for service in services.values() for one in service.get("volumes", [])]:
        source = mount.partition(":")[0]
        assert source in compose()["volumes"] or (DEPLOY / source).exists() or source == "./secrets"
    known = {"FROM", "RUN", "COPY", "USER", "ENV", "VOLUME", "EXPOSE", "CMD"}
    assert {word for word, _ in instructions()} <= known


def test_the_proxy_passes_requests_to_the_server_and_keeps_probes_inside():
    text = re.sub(r"\{\$?[A-Z]+(:[^}]*)?\}|\{\$[^}]*\}", "x", (DEPLOY / "Caddyfile").read_text())
    lines = [line.split("#")[0] for line in text.splitlines()]
    depth = 0
    for line in lines:
        depth += line.count("{") - line.count("}")
        assert depth >= 0
    assert depth == 0
    settings = load(DEPLOY / "serve.toml").serve
    assert f"127.0.0.1:{settings['port']}" in (DEPLOY / "Caddyfile").read_text()
    assert settings["body"] == 4 << 20
    assert text.count("4MiB") == 1
    assert re.search(r"@inside path /livez /readyz /metrics", text)
