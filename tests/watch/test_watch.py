"""The live page: what it shows of a run that goes on, is resumed, diverges or ends, and to whom."""

import asyncio
import http.client
import io
import itertools
import json
import socket
import threading
import time
import urllib.request

import pytest
import uvicorn

from hamlearn import watch
from hamlearn.errors import ConfigError
from hamlearn.experiments.run import run
from hamlearn.record.jsonl import sampled
from hamlearn.watch import site
from tests.browser import chromium, needs_chromium
from tests.cli import invoke

CONFIG = """
[run]
title = "Hénon & <b>"
steps = 200
[stream]
kind = "signals.henon"
[network]
hidden = 4
[records]
every = 10
report = false
[checkpoint]
every = 50
"""


def row(k, **more):
    return json.dumps({"step": 10 * k, "t": 5.0 * k, "loss": 1 / k, "omega": 0.1, "theta": 2.0, **more}) + "\n"


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    return folder


def write(folder, rows, name="record.jsonl", mode="a"):
    with (folder / name).open(mode) as file:
        file.writelines(rows)


def data(seen):
    return json.loads(seen.look()[1])


def steps(rows):
    return [one["step"] for one in rows]


def test_a_growing_record_is_read_up_to_its_last_whole_row_and_what_is_not_a_row_is_passed_over(folder):
    path = folder / "record.jsonl"
    assert sampled(path) == []
    write(folder, [row(1), "not a row\n", "[" * 100_000 + "\n", row(2), row(3)[:9]])
    assert steps(sampled(path)) == [10, 20]
    write(folder, [row(3)[9:]])
    assert steps(sampled(path)) == [10, 20, 30]


def test_of_a_long_record_about_so_many_rows_are_read_evenly_and_the_last(folder):
    path = folder / "record.jsonl"
    write(folder, [row(k) for k in range(1, 100_001)])
    found = steps(sampled(path, 1000))
    assert 990 <= len(found) <= 1100
    assert (found[0] <= 20, found[-1]) == (True, 1_000_000)
    assert max(b - a for a, b in itertools.pairwise(found)) < 1200


def test_the_data_say_what_a_run_is_at_and_have_a_new_number_when_something_is_new(folder):
    seen = watch.RunFolder(folder)
    assert (data(seen)["status"], data(seen)["at"]) == ("waiting", "")
    write(folder, [row(k) for k in range(1, 30)])
    write(folder, ['{"step": 150}\n'], "resumed.jsonl")
    first = seen.look()
    assert seen.look() == first
    assert (data(seen)["status"], data(seen)["resumed"], len(data(seen)["rows"])) == ("learning", [150], 29)
    (folder / "result.json").write_text('{"steps": 290, "behind": ["words"]}')
    assert seen.look()[0] == first[0] + 1
    assert (data(seen)["status"], data(seen)["result"]["behind"]) == ("finished", ["words"])
    write(folder, [row(30)])
    assert (data(seen)["status"], data(seen)["result"]) == ("learning", {})


def test_a_real_run_that_is_resumed_is_shown_with_its_mark_and_its_title(tmp_path):
    path = tmp_path / "config.toml"
    path.write_text(CONFIG.replace("200", "100"))
    run(path, out=tmp_path / "run", progress=False)
    path.write_text(CONFIG)
    run(path, out=tmp_path / "run", resume=True, progress=False)
    seen = watch.RunFolder(tmp_path / "run")
    assert (data(seen)["status"], data(seen)["resumed"]) == ("finished", [100])
    assert "<h1>Hénon &amp; &lt;b&gt;</h1>" in seen.page()
    assert "signals.henon" in seen.page()


def ask(page, path="", method="GET", **headers):
    link = http.client.HTTPConnection(page.address.removeprefix("http://").strip("/"), timeout=30)
    link.request(method, f"/{path}", headers=headers)
    answer = link.getresponse()
    answer.text = answer.read().decode()
    link.close()
    return answer


def test_the_page_is_for_this_machine_alone_and_loads_nothing_from_elsewhere(folder):
    for host in ("0.0.0.0", "192.168.1.7", "::", "example.org"):
        with pytest.raises(ConfigError, match=r"the page has no password.*ssh -L"), watch.watch(folder, host, 0):
            pass
    with pytest.raises(ConfigError, match=r"there is no folder.*nowhere"), watch.watch(folder / "nowhere"):
        pass
    with watch.watch(folder, port=0) as page:
        answer = ask(page)
        assert (answer.status, answer.headers["Content-Security-Policy"]) == (200, site.POLICY)
        # A page of another site that calls this machine by a name of its own.
        assert ask(page, Host="evil.example").status == 400
        assert ask(page, method="POST").status == 405
        assert ask(page, "nothing").status == 404
        texts = answer.text + ask(page, "watch.js").text.replace("http://www.w3.org/2000/svg", "")
        assert "http" not in texts + ask(page, "watch.css").text
        assert "<style" not in answer.text
        assert " style=" not in answer.text
        assert "unsafe" not in site.POLICY
    assert not [thread for thread in threading.enumerate() if thread.name == "hamlearn-watch"]


def test_events_are_the_data_and_then_each_change_and_a_reader_that_returns_misses_none(folder):
    write(folder, [row(1)])
    with watch.watch(folder, port=0) as page:
        with urllib.request.urlopen(page.address + "events") as events:
            lines = [events.readline().decode() for _ in range(4)]
            assert [line.strip() for line in lines[:2]] == ["id: 1", "event: data"]
            assert json.loads(lines[2].removeprefix("data: "))["rows"][0]["step"] == 10
            write(folder, [row(2)])
            assert [events.readline().strip() for _ in range(2)] == [b"id: 2", b"event: data"]
        again = urllib.request.Request(page.address + "events", headers={"Last-Event-ID": "1"})
        with urllib.request.urlopen(again) as events:
            assert [events.readline().strip() for _ in range(2)] == [b"id: 2", b"event: data"]


def test_readers_of_events_that_leave_leave_nothing_behind(folder):
    write(folder, [row(1)])
    loops = []

    async def app(scope, receive, send):
        loops.append(asyncio.get_running_loop())
        await inner(scope, receive, send)

    inner = site.app(folder)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        links = [socket.create_connection(listener.getsockname()) for _ in range(20)]
        for link in links:
            link.sendall(b"GET /events HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert b"text/event-stream" in link.recv(65536)
        busy = len(asyncio.all_tasks(loops[0]))
        for link in links:
            link.close()
        until = time.monotonic() + 20
        while len(asyncio.all_tasks(loops[0])) > busy - 20 and time.monotonic() < until:
            time.sleep(0.1)
        assert len(asyncio.all_tasks(loops[0])) <= busy - 20
        server.should_exit = True
        thread.join()


@needs_chromium
def test_chromium_shows_new_rows_an_alarm_and_a_resume_without_a_complaint(folder, tmp_path):
    from PIL import Image

    with watch.watch(folder, port=0) as served, chromium(tmp_path / "profile", served.address) as page:
        page.until("document.body.dataset.state === 'waiting' && document.body.dataset.version")
        write(folder, [row(k) for k in range(1, 30)])
        page.until("document.querySelectorAll('svg.chart').length >= 2")
        assert page.see("document.getElementById('status').textContent") == "learning"
        assert page.see("document.querySelector('#cards strong').textContent") == "290"
        write(folder, ['{"step": 150}\n'], "resumed.jsonl")
        write(folder, [row(k, diverging=300) for k in range(30, 60)])
        page.until("document.querySelector('#alarm .alarm') !== null")
        assert page.see("document.querySelector('#alarm').textContent").startswith("Diverging since sample 300:")
        charts = page.see("document.querySelectorAll('svg.chart').length")
        assert page.see("document.querySelectorAll('.mark').length") == charts
        # What the pointer is at is shown, by a script that runs under the policy.
        page.see(
            "(() => { const svg = document.querySelector('svg.chart'), box = svg.getBoundingClientRect();"
            "const at = {clientX: box.left + 200, clientY: box.top + 50};"
            "svg.dispatchEvent(new PointerEvent('pointermove', at)) })()"
        )
        assert page.see("document.querySelector('.tip').style.visibility") == "visible"
        for theme, colour in (("light", (0xE0, 0x59, 0x2A)), ("dark", (0xFF, 0x8D, 0x63))):
            for width in (1280, 400):
                picture = Image.open(io.BytesIO(page.look(width, 1600, theme))).convert("RGB")
                colours = {found: count for count, found in picture.getcolors(1 << 24)}
                assert colours.get(colour, 0) > 100, f"no line to be seen, {theme}, {width}"
                assert page.see("document.documentElement.scrollWidth") <= width, "it is wider than the window"
        assert page.complaints == []


def test_the_command_says_where_the_page_is_and_ends_with_ctrl_c(folder, monkeypatch):
    asked = []

    class Watching(site.Watching):
        def __init__(self, address):
            super().__init__(address)
            self.ended.wait = self.interrupted

        def interrupted(self):
            asked.append(ask(self).status)
            raise KeyboardInterrupt

    monkeypatch.setattr(site, "Watching", Watching)
    done = invoke("watch", folder, "--port", "0")
    assert (done.exit_code, asked) == (0, [200])
    assert f"Watching {folder} at http://127.0.0.1:" in done.output.replace("\n", "")
