"""Who may ask: tokens from files, loopback, origins; and what is refused before anything is built."""

import time

import pytest

from hamlearn.errors import ConfigError
from hamlearn.serve import access, check
from hamlearn.serve.settings import is_loopback
from tests.serve.server import NET, ONE, Server

LEARN, PREDICT, NEW = "learn-token-of-24-letters", "predict-token-of-24-letter", "new-token-of-24-letters-x"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("server")
    (folder / "learn").write_text(LEARN + "\n")
    (folder / "predict").write_text(PREDICT + "\n")
    bounds = {"learn_tokens": "learn", "predict_tokens": "predict", "behind_proxy": True, "agents": 3}
    before, access.DELAY = access.DELAY, 0.05
    with Server(folder, serve=bounds) as server:
        server.folder = folder
        yield server
    access.DELAY = before


def ask(server, path, value=None, token=LEARN, **more):
    headers = {"host": "box.example", "authorization": f"Bearer {token}", **more.pop("headers", {})}
    return server.ask(path, value, headers=headers, **more)


def test_without_a_token_nothing_is_answered_but_the_probes(server):
    paths = [("/predict", ONE), ("/label", {"id": 1, "target": [1.0]}), ("/state", None), ("/metrics", None),
             ("/checkpoint", None), ("/openapi.json", None), ("/nowhere", None)]  # fmt: skip
    wrong = ["", "Bearer", "Bearer x", f"Bearer {LEARN}x", f"Bearer {LEARN[:-1]}", LEARN, "Basic ***", "Basic eDp"]
    for header in wrong:
        for path, value in paths:
            answer = server.ask(path, value, headers={"authorization": header})
            assert answer.status == 401
            assert LEARN not in answer.body.decode()
    assert server.ask("/livez").status == server.ask("/readyz").status == 200
    found = ask(server, "/metrics").body.decode()
    assert f"hamlearn_failed_logins_total {float(len(wrong) * len(paths))}" in found


def test_a_token_for_predictions_predicts_and_cannot_learn(server):
    for path in ("/state", "/metrics", "/checkpoints"):
        assert ask(server, path, token=PREDICT).status == 200
    assert ask(server, "/predict", {"u": [1.0, 1.0]}, PREDICT).status == 200
    assert ask(server, "/evaluate", ONE, PREDICT).status == 200
    assert ask(server, "/predict", ONE, LEARN).status == 200
    refused = [
        ask(server, "/predict", ONE, PREDICT),
        ask(server, "/label", {"id": 1, "target": [1.0]}, PREDICT),
        ask(server, "/checkpoint", None, PREDICT, method="POST"),
        ask(server, "/rollback", None, PREDICT, method="POST"),
        ask(server, "/agent?agent=x", None, PREDICT, method="DELETE"),
    ]
    assert [answer.status for answer in refused] == [403] * 5
    assert ask(server, "/state").value["learned"] == 1


def test_tokens_are_rotated_without_a_restart_and_a_broken_file_changes_nothing(server):
    (server.folder / "learn").write_text(f"{LEARN}\n{NEW}\n")
    assert ask(server, "/state", token=NEW).status == ask(server, "/state").status == 200
    (server.folder / "learn").write_text(f"{NEW}\n")
    assert ask(server, "/state").status == 401
    (server.folder / "learn").write_text("short\n")
    assert ask(server, "/state", token=NEW).status == 200
    (server.folder / "learn").unlink()
    assert ask(server, "/state", token=NEW).status == 200
    (server.folder / "learn").write_text(f"{LEARN}\n")
    assert ask(server, "/state").status == 200


def test_failed_logins_are_delayed_and_others_are_answered_meanwhile(server, monkeypatch):
    monkeypatch.setattr(access, "DELAY", 0.5)
    began = time.monotonic()
    answers = server.ask_all([("/state", None)] * 8)
    assert time.monotonic() - began >= 0.5
    assert {answer.status for answer in answers} == {401}
    began = time.monotonic()
    assert ask(server, "/state").status == 200
    assert time.monotonic() - began < 0.4


def test_a_page_of_another_origin_may_read_and_write_nothing(server, tmp_path):
    assert ask(server, "/checkpoint", method="POST", headers={"origin": "https://evil.example"}).status == 403
    assert ask(server, "/checkpoint", method="POST", headers={"origin": "https://box.example"}).status == 200
    with Server(tmp_path) as local:
        for host in ("evil.example", "127.0.0.1.evil.example", "[::2]"):
            assert local.ask("/state", headers={"host": host}).status == 403
        for host in ("127.0.0.1:8000", "localhost", "[::1]:80"):
            assert local.ask("/state", headers={"host": host}).status == 200
        assert local.ask("/predict", ONE, headers={"origin": "http://evil.example"}).status == 403


def test_beyond_loopback_a_proxy_and_a_token_are_required_before_anything_is_built(tmp_path):
    for host in ("0.0.0.0", "::", "192.0.2.7", "box.example"):
        assert not is_loopback(host)
        with pytest.raises(ConfigError, match=r"has no TLS.*examples/deploy.*--behind-proxy"):
            check({"network": NET, "serve": {"host": host}}, tmp_path)
        with pytest.raises(ConfigError, match=r"needs serve\.learn_tokens"):
            check({"network": NET, "serve": {"host": host, "behind_proxy": True}}, tmp_path)
    for text, reason in (("short", "fewer than 16"), ("", "holds no token"), (None, "Create the file")):
        path = tmp_path / "tokens"
        path.unlink(missing_ok=True)
        if text is not None:
            path.write_text(text)
        with pytest.raises(ConfigError, match=reason):
            Server(tmp_path, serve={"learn_tokens": "tokens"}).__enter__()


@pytest.mark.parametrize(
    ("sections", "reason"),
    [
        ({"stream": {"kind": "csv"}}, r"\[stream\] is not allowed for hamlearn serve"),
        ({"network": {"outputs": 1}}, "network.inputs is missing"),
        ({"serve": {"prot": 1}}, "Did you mean 'port'"),
        ({"serve": {"queue": 3}}, "serve.batch = 4096 is more than serve.queue = 3"),
        ({"serve": {"run": "nowhere"}}, r"\[network\] is not allowed beside serve.run"),
        ({"run": {"steps": 3}}, "run.steps is not known"),
    ],
)
def test_a_mistake_in_the_file_is_named(sections, reason, tmp_path):
    with pytest.raises(ConfigError, match=reason):
        check({"network": NET, **sections}, tmp_path)
