"""The live page: what it shows of a run that goes on, is resumed, diverges or ends, and to whom."""

import http.client
import io
import itertools
import json
import socket
import threading
import urllib.request
from contextlib import ExitStack

import pytest

from hamlearn import watch
from hamlearn.errors import ConfigError
from hamlearn.experiments.run import run
from hamlearn.watch import tail
from hamlearn.watch.server import READERS
from hamlearn.watch.site import POLICY
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


def view(folder):
    return watch.RunView(folder, every=0.0)


def parts(view):
    return json.loads(view.look()[1])


def test_a_record_is_followed_row_by_row_and_half_a_row_waits_for_its_other_half(folder):
    path = folder / "record.jsonl"
    tails = watch.Tail(path)
    assert (tails.look(), tails.rows) == (False, [])
    write(folder, [row(1), row(2), row(3)[:9]])
    assert tails.look()
    assert [one["step"] for one in tails.rows] == [10, 20]
    assert not tails.look()
    write(folder, [row(3)[9:]])
    assert tails.look()
    assert [one["step"] for one in tails.rows] == [10, 20, 30]


def test_a_record_that_a_resumed_run_has_cut_is_read_anew(folder):
    tails = watch.Tail(folder / "record.jsonl")
    write(folder, [row(k) for k in range(1, 10)])
    tails.look()
    write(folder, [row(1), row(2)], mode="w")
    assert tails.look()
    assert [one["step"] for one in tails.rows] == [10, 20]
    # Cut and grown beyond where it was, with rows of other lengths, between two looks.
    write(folder, [row(k, loss=0.123456789) for k in range(1, 12)], mode="w")
    assert tails.look()
    assert [one["step"] for one in tails.rows] == [10 * k for k in range(1, 12)]
    (folder / "record.jsonl").unlink()
    assert tails.look()
    assert tails.rows == []


def test_a_line_that_is_no_row_is_passed_over(folder):
    tails = watch.Tail(folder / "record.jsonl")
    write(folder, [row(1), "no row\n", '{"step": -3}\n', "[" * 100_000 + "\n", row(2)])
    assert tails.look()
    assert [one["step"] for one in tails.rows] == [10, 20]


def test_an_endless_record_is_kept_in_bounded_memory_evenly_and_with_its_last_row(folder, monkeypatch):
    monkeypatch.setattr(tail, "MOST", 10)
    tails = watch.Tail(folder / "record.jsonl")
    for k in range(1, 100):
        write(folder, [row(k)])
        tails.look()
        assert tails.rows[-1]["step"] == 10 * k
        assert len(tails.rows) <= 12
    steps = [one["step"] for one in tails.rows]
    assert {b - a for a, b in itertools.pairwise(steps[:-1])} == {160}


def test_the_view_says_what_a_run_is_at(folder):
    seen = view(folder)
    assert parts(seen)["status"] == "waiting"
    write(folder, [row(k) for k in range(1, 30)])
    assert parts(seen)["status"] == "learning"
    (folder / "result.json").write_text('{"steps": 290}')
    assert parts(seen)["status"] == "finished"
    write(folder, [row(30)])
    assert parts(seen)["status"] == "learning"


def test_a_view_has_a_new_number_when_and_only_when_something_is_new(folder):
    seen = view(folder)
    write(folder, [row(1)])
    first = seen.look()
    assert seen.look() == first
    write(folder, [row(2)])
    assert seen.look()[0] == first[0] + 1


def test_files_are_looked_at_once_however_many_watch(folder):
    now = [0.0]
    seen = watch.RunView(folder, every=1.0, clock=lambda: now[0])
    write(folder, [row(1)])
    first = seen.look()
    write(folder, [row(2)])
    now[0] = 0.9
    assert seen.look() == first
    now[0] = 1.0
    assert seen.look() != first


def test_loss_norms_speed_and_what_the_feed_left_out_are_shown(folder):
    write(folder, [row(k) for k in range(1, 30)])
    counts = ({"step": 10 * k, "seconds": 0.1 * k, "dropped": 0, "late": k // 10, "bad": k} for k in range(1, 30))
    write(folder, [json.dumps(one) + "\n" for one in counts], "speed.jsonl")
    shown = parts(view(folder))
    for words in (
        "running mean <b>",
        "omega <b>0.1",
        "theta <b>2<",
        "samples a second <b>100<",
        "late <b>2<",
        "bad <b>29<",
    ):
        assert words in shown["charts"], words
    assert "<span>bad</span><strong>29</strong>" in shown["cards"]
    assert "dropped" not in shown["cards"]


def test_each_resume_is_marked_where_it_was(folder):
    write(folder, [row(k) for k in range(1, 30)])
    assert "resumed" not in parts(view(folder))["charts"]
    write(folder, ['{"step": 150}\n'], "resumed.jsonl")
    charts = parts(view(folder))["charts"]
    assert charts.count(">resumed</text>") == charts.count("<svg")
    # In the middle of steps 10 to 290, on a chart from pixel 64 to 704.
    assert 'class="mark" x1="384.0"' in charts


def test_marks_that_lie_close_together_are_drawn_each_and_named_once(folder):
    write(folder, [row(k) for k in range(1, 30)])
    write(folder, [f'{{"step": {step}}}\n' for step in (20, 22, 24, 290, 290)], "resumed.jsonl")
    charts = parts(view(folder))["charts"]
    pictures = charts.count("<svg")
    assert charts.count('class="mark"') == 5 * pictures
    assert charts.count(">resumed</text>") == 2 * pictures


def test_an_alarm_stands_while_the_run_diverges(folder):
    write(folder, [row(1, diverging=None)])
    seen = view(folder)
    assert parts(seen)["alarm"] == ""
    write(folder, [row(2, diverging=15)])
    assert "since sample 15" in parts(seen)["alarm"]
    write(folder, [row(3, diverging=None)])
    assert parts(seen)["alarm"] == ""


def test_a_real_run_that_is_resumed_is_shown_with_its_mark_and_its_title(tmp_path):
    path = tmp_path / "config.toml"
    path.write_text(CONFIG.replace("200", "100"))
    run(path, out=tmp_path / "run", progress=False)
    path.write_text(CONFIG)
    run(path, out=tmp_path / "run", resume=True, progress=False)
    seen = view(tmp_path / "run")
    shown = parts(seen)
    assert shown["status"] == "finished"
    assert shown["charts"].count(">resumed</text>") == shown["charts"].count("<svg")
    page = watch.Site(seen).get("/").body.decode()
    assert "<h1>Hénon &amp; &lt;b&gt;</h1>" in page
    assert shown["charts"] in page


def test_no_part_of_the_page_is_from_elsewhere_or_inline(folder):
    write(folder, [row(k) for k in range(1, 30)])
    site = watch.Site(view(folder), root="/watch")
    page = site.get("/").body.decode()
    assert 'src="/watch/watch.js"' in page
    assert 'href="/watch/watch.css"' in page
    assert "<style" not in page
    assert " style=" not in page
    assert "<script>" not in page
    assert "http" not in page + site.get("/watch.js").body.decode() + site.get("/watch.css").body.decode()
    for path in ("/", "/watch.css", "/watch.js", "/nothing"):
        assert site.get(path).headers["Content-Security-Policy"] == POLICY
    assert "unsafe" not in POLICY


def test_events_are_the_view_and_then_each_new_one_and_a_reader_that_comes_back_misses_none(folder):
    write(folder, [row(1)])
    site = watch.Site(view(folder), sleep=lambda seconds: write(folder, [row(2)]))
    events = site.events()
    first, second = next(events).decode(), next(events).decode()
    assert first.startswith("event: view\nid: 1\ndata: {")
    assert first.endswith("}\n\n")
    assert second.startswith("event: view\nid: 2\n")
    assert next(site.events(seen="1")).decode().startswith("event: view\nid: ")
    quiet = watch.Site(view(folder), pause=20.0, sleep=lambda seconds: None).events()
    assert [next(quiet)[:7] for _ in range(2)] == [b"event: ", b": still"]


def ask(server, method="GET", **headers):
    link = http.client.HTTPConnection(*server.server_address[:2], timeout=30)
    link.request(method, "/", headers=headers)
    answer = link.getresponse()
    answer.read()
    link.close()
    return answer


def test_the_page_is_for_this_machine_alone(folder):
    for host in ("0.0.0.0", "192.168.1.7", "::", "example.org"):
        with pytest.raises(ConfigError, match=r"no address of loopback.*ssh -L"):
            watch.watch(folder, host, 0)
    with watch.watch(folder, port=0) as server:
        assert ask(server).status == 200
        # A page of another site that calls this machine by a name of its own.
        assert ask(server, Host="evil.example").status == 403
        refused = ask(server, "POST")
        assert (refused.status, refused.headers["Content-Security-Policy"]) == (501, POLICY)


def test_too_many_readers_are_told_so_at_once_and_the_rest_go_on(folder):
    with watch.watch(folder, port=0) as server, ExitStack() as links:
        for _ in range(READERS):
            link = links.enter_context(socket.create_connection(server.server_address[:2]))
            link.sendall(b"GET /events HTTP/1.0\r\nHost: localhost\r\n\r\n")
            assert link.recv(12) == b"HTTP/1.0 200"
        refused = ask(server)
        assert (refused.status, refused.headers["Retry-After"]) == (503, "5")


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"there is no folder.*nowhere"):
        watch.watch(tmp_path / "nowhere")


@needs_chromium
def test_chromium_shows_new_rows_an_alarm_and_a_resume_without_a_word_of_complaint(folder, tmp_path):
    from PIL import Image

    with watch.watch(folder, port=0) as server, chromium(tmp_path / "profile", server.address) as page:
        page.until("document.body.dataset.state === 'waiting' && document.body.dataset.version")
        assert "by themselves" in page.see("document.querySelector('.empty').textContent")
        write(folder, [row(k) for k in range(1, 30)])
        page.until("document.querySelectorAll('svg.chart').length >= 2")
        assert page.see("document.getElementById('status').textContent") == "learning"
        assert page.see("document.querySelector('#cards strong').textContent") == "290"
        write(folder, ['{"step": 150}\n'], "resumed.jsonl")
        write(folder, [row(k, diverging=300) for k in range(30, 60)])
        page.until("document.querySelector('#alarm .alarm') !== null")
        assert page.see("document.querySelector('#cards strong').textContent") == "590"
        assert page.see("document.querySelectorAll('.mark').length") == page.see(
            "document.querySelectorAll('svg.chart').length"
        )
        # What the pointer is at is told, by a script that runs under the policy.
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


@needs_chromium
def test_chromium_runs_no_script_that_is_not_the_pages_own(folder, tmp_path):
    write(folder, [row(1)])
    with watch.watch(folder, port=0) as server, chromium(tmp_path / "profile", server.address) as page:
        page.until("document.body.dataset.version")
        page.see(
            "(() => { const bad = document.createElement('script'); bad.textContent = 'window.broken = true';"
            "document.head.append(bad); document.body.setAttribute('onclick', 'window.broken = true');"
            "document.body.click() })()"
        )
        assert page.see("window.broken === undefined")
        assert any("Content Security Policy" in json.dumps(complaint) for complaint in page.complaints)


def test_the_command_says_where_the_page_is_and_ends_with_ctrl_c(folder, monkeypatch):
    asked = []

    class Impatient(watch.Server):
        def __enter__(self):
            self.ended.wait = self.interrupted
            return super().__enter__()

        def interrupted(self):
            asked.append(ask(self).status)
            raise KeyboardInterrupt

    monkeypatch.setattr("hamlearn.watch.server.Server", Impatient)
    done = invoke("watch", folder, "--port", "0")
    assert (done.exit_code, asked) == (0, [200])
    assert f"Watching {folder} at http://127.0.0.1:" in done.output.replace("\n", "")


def test_a_closed_server_leaves_no_thread_that_serves(folder):
    with watch.watch(folder, port=0) as server:
        urllib.request.urlopen(server.address).close()
    assert not [
        thread for thread in threading.enumerate() if thread.name == "hamlearn-watch" and thread.is_alive()
    ]
