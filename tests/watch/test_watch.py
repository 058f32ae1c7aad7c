"""The live page: what it shows of a run that goes on, is resumed or ends, and to whom."""

import http.client
import io
import itertools
import json
import threading

import pytest

from hamlearn import watch
from hamlearn.errors import ConfigError
from hamlearn.experiments.run import run
from hamlearn.record.page import MOST_ROWS
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


def data(folder):
    return json.loads(watch.data(folder))


def steps(folder):
    return [one["step"] for one in watch.rows_of(folder / "record.jsonl")]


def test_a_growing_record_is_read_up_to_its_last_whole_row_and_what_is_not_a_row_is_passed_over(folder):
    assert steps(folder) == []
    write(folder, [row(1), "not a row\n", "[" * 100_000 + "\n", row(2), row(3)[:9]])
    assert steps(folder) == [10, 20]
    write(folder, [row(3)[9:]])
    assert steps(folder) == [10, 20, 30]


def test_of_a_long_record_some_rows_are_read_evenly_and_the_last(folder):
    write(folder, [row(k) for k in range(1, 50_001)])
    found = steps(folder)
    assert MOST_ROWS / 2 <= len(found) <= MOST_ROWS + 1
    assert (found[0], found[-1]) == (10, 500_000)
    assert max(b - a for a, b in itertools.pairwise(found)) <= 130


def test_the_data_say_what_a_run_is_at(folder):
    assert (data(folder)["status"], data(folder)["at"]) == ("waiting", "")
    write(folder, [row(k) for k in range(1, 30)])
    write(folder, ['{"step": 150}\n'], "resumed.jsonl")
    found = data(folder)
    assert (found["status"], found["resumed"], len(found["rows"])) == ("learning", [150], 29)
    (folder / "result.json").write_text('{"steps": 290, "behind": ["words"]}')
    assert (data(folder)["status"], data(folder)["result"]["behind"]) == ("finished", ["words"])
    write(folder, [row(30)])
    assert (data(folder)["status"], data(folder)["result"]) == ("learning", {})


def test_a_real_run_that_is_resumed_is_shown_with_its_mark_and_its_title(tmp_path):
    path = tmp_path / "config.toml"
    path.write_text(CONFIG.replace("200", "100"))
    run(path, out=tmp_path / "run", progress=False)
    path.write_text(CONFIG)
    run(path, out=tmp_path / "run", resume=True, progress=False)
    found, page = data(tmp_path / "run"), watch.page(tmp_path / "run")
    assert (found["status"], found["resumed"]) == ("finished", [100])
    assert "<h1>Hénon &amp; &lt;b&gt;</h1>" in page
    assert "signals.henon" in page
    (tmp_path / "run" / "config.json").write_text("{")
    assert "<h1>Run</h1>" in watch.page(tmp_path / "run")


def ask(address, path="", method="GET", **headers):
    link = http.client.HTTPConnection(address.removeprefix("http://").strip("/"), timeout=30)
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
        assert (answer.status, answer.headers["Content-Security-Policy"]) == (200, watch.POLICY)
        # A page of another site that calls this machine by a name of its own.
        assert ask(page, Host="evil.example").status == 400
        assert ask(page, method="POST").status == 501
        assert ask(page, "nothing").status == 404
        texts = answer.text + ask(page, "report.js").text.replace("http://www.w3.org/2000/svg", "")
        assert "http" not in texts + ask(page, "report.css").text
        assert "<style" not in answer.text
        assert " style=" not in answer.text
        assert "unsafe" not in watch.POLICY
    assert not [thread for thread in threading.enumerate() if thread.name == "hamlearn-watch"]


def test_data_are_sent_again_only_when_they_have_changed(folder):
    write(folder, [row(1)])
    with watch.watch(folder, port=0) as page:
        first = ask(page, "data")
        assert [one["step"] for one in json.loads(first.text)["rows"]] == [10]
        again = {"If-None-Match": first.headers["ETag"]}
        assert ask(page, "data", **again).status == 304
        write(folder, [row(2)])
        assert len(json.loads(ask(page, "data", **again).text)["rows"]) == 2


@needs_chromium
def test_chromium_shows_new_rows_what_the_learner_is_behind_and_a_resume_without_a_complaint(folder, tmp_path):
    from PIL import Image

    with watch.watch(folder, port=0) as served, chromium(tmp_path / "profile", served) as page:
        page.until("document.body.dataset.state === 'waiting' && document.body.dataset.version")
        write(folder, [row(k) for k in range(1, 30)])
        page.until("document.querySelectorAll('svg.chart').length >= 2")
        assert page.see("document.getElementById('status').textContent") == "learning"
        assert page.see("document.querySelector('#cards strong').textContent") == "290"
        write(folder, ['{"step": 150}\n'], "resumed.jsonl")
        write(folder, [row(k) for k in range(30, 60)])
        (folder / "result.json").write_text('{"steps": 590, "behind": ["The learner is behind."]}')
        page.until("document.querySelector('#alarm .alarm') !== null")
        assert page.see("document.querySelector('#alarm').textContent") == "The learner is behind."
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
    class Waiting(threading.Event):
        def wait(self, timeout=None):
            if timeout is None:
                raise KeyboardInterrupt
            return super().wait(timeout)

    monkeypatch.setattr("hamlearn.cli.running.Event", Waiting)
    done = invoke("watch", folder, "--port", "0")
    assert done.exit_code == 0
    assert f"Watching {folder} at http://127.0.0.1:" in done.output.replace("\n", "")
