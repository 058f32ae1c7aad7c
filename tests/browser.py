"""A real Chromium: run once over a page, or driven by its own protocol."""

import itertools
import json
import shutil
import subprocess
import time
import urllib.request
from base64 import b64decode
from contextlib import contextmanager

import pytest
from websockets.sync.client import connect

BROWSER = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
PATIENCE = 60.0
OPTIONS = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars")

needs_chromium = pytest.mark.skipif(BROWSER is None, reason="no Chromium to see the page with")


def see(path, folder, *options):
    """Chromium over the page of a file, once: the process as it ended, with all that it said."""
    command = [BROWSER, *OPTIONS, f"--user-data-dir={folder / 'profile'}", *options, path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    return done


def colours(path, folder, width, height, theme):
    """The colours of the page of a file, each with the number of its pixels; nothing went wrong on the page."""
    from PIL import Image

    shot = folder / "shot.png"
    dark = ["--blink-settings=preferredColorScheme=0"] if theme == "dark" else []
    size = f"--window-size={width},{height}"
    done = see(path, folder, "--enable-logging=stderr", size, f"--screenshot={shot}", *dark)
    # What the page itself reports goes through the console; the rest is the browser's talk with the system.
    assert "CONSOLE" not in done.stderr
    image = Image.open(shot).convert("RGB")
    assert image.size == (width, height)
    return {colour: count for count, colour in image.getcolors(1 << 24)}


class Page:
    """One page: `see` evaluates an expression in it, `complaints` are what its console and its policy said."""

    def __init__(self, link):
        self._link, self._ids = link, itertools.count(1)
        self.complaints = []
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method, **params):
        number = next(self._ids)
        self._link.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            message = json.loads(self._link.recv(PATIENCE))
            if message.get("id") == number:
                return message["result"]
            if message.get("method") in ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled"):
                self.complaints.append(message["params"])

    def see(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def until(self, expression):
        end = time.monotonic() + PATIENCE
        # Of a page that is being loaded, nothing can be seen yet.
        while not (found := self.see(f"document.readyState === 'complete' && !!document.body && ({expression})")):
            assert time.monotonic() < end, f"{expression} never came true"
            time.sleep(0.05)
        return found

    def look(self, width, height, theme):
        """A picture of the page, at that size and in that theme."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )
        features = [{"name": "prefers-color-scheme", "value": theme}]
        self.call("Emulation.setEmulatedMedia", features=features)
        return b64decode(self.call("Page.captureScreenshot")["data"])


@contextmanager
def chromium(folder, address):
    """A page of that address."""
    process = subprocess.Popen(
        [BROWSER, *OPTIONS, "--remote-debugging-port=0", f"--user-data-dir={folder}", "about:blank"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        ports, end = folder / "DevToolsActivePort", time.monotonic() + PATIENCE
        while not (ports.exists() and ports.read_text().count("\n")):
            assert time.monotonic() < end, "Chromium does not start"
            time.sleep(0.05)
        port = ports.read_text().split()[0]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json", timeout=PATIENCE) as answer:
            targets = json.load(answer)
        found = next(target for target in targets if target["type"] == "page")
        with connect(found["webSocketDebuggerUrl"], max_size=None) as link:
            page = Page(link)
            page.call("Page.navigate", url=address)
            yield page
    finally:
        process.terminate()
        process.wait(PATIENCE)
