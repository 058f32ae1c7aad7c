"""Runs the pages while the site is built: shows what each block prints, and makes the figures.

A page with Python blocks is run, each page in a process of its own (`play.py`). What a block prints is shown below
it, and what it saved is placed beside the page: `figure.savefig("wave.svg")` in a block, `![A wave](wave.svg)` in
the text. The scripts in `docs/_gallery` draw the figures of the examples, which go to `gallery/`. Every figure
exists in two inks, for light and dark pages.

What a run has made is kept in `.cache/figures`, under a name that stands for everything it depends on: the page,
the library, the examples, how it is run, and the versions of what computes and draws. The tests of pages and
examples look there too, so that the site and the tests run each of them once.
"""

import ast
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from posixpath import dirname, join, normpath
from textwrap import dedent, indent
from typing import Any

import nbformat
import notebooks
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

HERE = Path(__file__).parent
LIMIT = 60
"""Seconds of one core that a page or an example may take: readers do not wait longer."""
INKS = {"#20242e": "#e4e7ef", "#c8ccd8": "#454b5c"}
"""Colours of text and grid in matplotlibrc, and what takes their place on dark pages."""
IMAGE = re.compile(r"!\[([^\]]*)\]\(([\w./-]+)\.svg\)")
SECONDS = re.compile(r"\{seconds of (\w+)\}")
CODE = re.compile(r"^\{code of ([\w/.]+)\}$", re.MULTILINE)
BLOCK = re.compile(r"^( *)```python\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
FENCE = re.compile(r"^ *(?:```|~~~)[ {.]*py", re.MULTILINE)
RESULTS = "benchmarks/results"
SHOWN = 24
"""Lines of what a block prints that are shown."""
_made: dict[str, float] = {}
_printed: dict[Path, dict[str, str]] = {}


@dataclass(frozen=True)
class Job:
    """Something to run, and where its figures go.

    Attributes:
        source: The page or the drawing.
        folder: The folder of the site that its figures stand in.
        kept: Where the cache has them.
    """

    source: Path
    folder: str
    kept: Path


def on_files(files: Files, config: Any) -> Files:
    """Run what draws, as far as it has changed, and add the figures to the site."""
    root = Path(config.config_file_path).parent
    found = jobs(root, Path(config.docs_dir))
    run(*found)
    _made.clear()
    for job in found:
        if (job.kept / "outputs.json").exists():
            _printed[job.source] = json.loads((job.kept / "outputs.json").read_text())
        for path in sorted(job.kept.glob("*.svg")):
            name = join(job.folder, path.stem)
            if name in _made or files.get_file_from_path(f"{name}.svg"):
                raise PluginError(f"{job.source} saves {path.name}, which is there already: give it another name")
            _made[name] = float((job.kept / "seconds").read_text())
            text = path.read_text()
            for ending, shown in ((".svg", text), ("-dark.svg", _dark(text))):
                files.append(File.generated(config, name + ending, content=shown))
        if job.folder == notebooks.FOLDER:
            made = notebooks.notebook(job.source.read_text(), _printed[job.source], job.kept)
            files.append(File.generated(config, _notebook_of(job.source), content=nbformat.writes(made)))
    _forget({job.kept for job in found}, root)
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Show a figure in the ink of the page, and write an example's code and the seconds that it took."""
    root = Path(config.config_file_path).parent

    def both(match: re.Match[str]) -> str:
        name = normpath(join(dirname(page.file.src_uri), match[2]))
        if name not in _made:
            return match[0]
        return f"![{match[1]}]({match[2]}.svg#only-light)![{match[1]}]({match[2]}-dark.svg#only-dark)"

    def seconds(match: re.Match[str]) -> str:
        name = join("gallery", match[1])
        if name not in _made:
            raise PluginError(f"{page.file.src_uri}: nothing in docs/_gallery saves {match[1]}.svg")
        return f"{max(1, round(_made[name]))} s"

    def code(match: re.Match[str]) -> str:
        block = f"```python\n{(root / match[1]).read_text()}```\n"
        return f'??? example "{match[1]}"\n\n{indent(block, "    ")}'

    source = Path(page.file.abs_src_path)
    unrun = blocks_without_output(markdown, _printed.get(source, {}))
    if unrun:
        raise PluginError(f"{page.file.src_uri}: the block in line {unrun[0]} is not run: begin it with ```python")
    shown = with_outputs(markdown, _printed.get(source, {}))
    if source in _printed and dirname(page.file.src_uri) == notebooks.FOLDER:
        shown = shown.replace("\n\n", f"\n\n[This page as a notebook]({source.stem}.ipynb)\n\n", 1)
    return CODE.sub(code, SECONDS.sub(seconds, IMAGE.sub(both, shown)))


def _notebook_of(page: Path) -> str:
    return f"{notebooks.FOLDER}/{page.stem}.ipynb"


def with_outputs(markdown: str, printed: dict[str, str]) -> str:
    """A page with what each block printed below it; `printed` has the text by the block's first line."""

    def both(match: re.Match[str]) -> str:
        lines = printed.get(str(markdown.count("\n", 0, match.start()) + 1), "").rstrip().splitlines()
        lines = [*lines[:SHOWN], "…"] if len(lines) > SHOWN else lines
        parts = [f"```python\n{without_asserts(dedent(match[2]))}```"]
        if lines:
            parts.append("\n".join(["``` {.text .output}", *lines, "```"]))
        return indent("\n\n".join(parts), match[1])

    return BLOCK.sub(both, markdown)


def blocks_without_output(markdown: str, printed: dict[str, str]) -> list[int]:
    """The lines of Python blocks that are shown and were not run, so that their output is not known."""
    lines = [markdown.count("\n", 0, fence.start()) + 1 for fence in FENCE.finditer(markdown)]
    return [line for line in lines if str(line) not in printed]


def without_asserts(code: str) -> str:
    """The code with `assert a == b` shown as `a  # b`, and `assert a` as `a  # True`: what a reader would see."""
    lines = code.splitlines(keepends=True)
    for found in reversed(ast.parse(code).body):
        if isinstance(found, ast.Assert):
            shown, value = found.test, "True"
            if isinstance(shown, ast.Compare) and [type(op) for op in shown.ops] == [ast.Eq]:
                shown, value = shown.left, ast.unparse(shown.comparators[0])
            text = f"{ast.get_source_segment(code, shown)}  # {value}\n"
            lines[found.lineno - 1 : found.end_lineno] = [text]
    return "".join(lines)


def is_run(page: Path) -> bool:
    """Whether a page has code to run, shown or not."""
    text = page.read_text()
    return "```python\n" in text or "invisible-code-block: python" in text


def jobs(root: Path, docs: Path) -> list[Job]:
    """The pages and the drawings of the gallery, with what each of them depends on."""
    versions = " ".join([sys.version, *(f"{name} {version(name)}" for name in ("torch", "numpy", "matplotlib"))])
    manner = [(HERE / name).read_text() for name in ("figures.py", "play.py", "matplotlibrc")]
    common = "".join([_digest(root / "src"), versions, *manner])
    found = []
    for page in sorted(docs.rglob("*.md")):
        if is_run(page):
            read = _digest(root / RESULTS) if RESULTS in page.read_text() else ""
            kept = _kept(root, common + page.read_text() + read)
            found.append(Job(page, dirname(page.relative_to(docs).as_posix()), kept))
    common += _digest(root / "examples")
    for drawing in sorted((docs / "_gallery").glob("*.py")):
        found.append(Job(drawing, "gallery", _kept(root, common + drawing.read_text())))
    return found


def _digest(folder: Path) -> str:
    """One text for all that a folder holds."""
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            found.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes())
    return found.hexdigest()


def _kept(root: Path, dependencies: str) -> Path:
    return root / ".cache" / "figures" / hashlib.sha256(dependencies.encode()).hexdigest()[:20]


def run(*asked: Job) -> None:
    """Run pages and drawings, unless what they make is there: figures, seconds, and what they printed.

    As many at a time as there are cores. A warning ends one of them, as it ends a test.
    """
    waiting = deque(job for job in asked if not job.kept.exists())
    cores = min(os.cpu_count() or 1, len(waiting))
    if cores:
        with ThreadPoolExecutor(cores) as pool:
            list(pool.map(lambda _: _work_off(waiting), range(cores)))


def _work_off(waiting: deque[Job]) -> None:
    with player() as playing:
        while waiting:
            try:
                job = waiting.popleft()
            except IndexError:  # another thread was faster
                return
            play(job, playing)


@contextmanager
def player() -> Iterator[subprocess.Popen[str]]:
    """A process that has loaded the libraries, and forks for each page that it plays."""
    # SOURCE_DATE_EPOCH: the same figure is the same file, whenever it is drawn.
    setting = {"MATPLOTLIBRC": str(HERE / "matplotlibrc"), "OMP_NUM_THREADS": "1", "SOURCE_DATE_EPOCH": "0"}
    setting |= {"PYTHONWARNINGS": "error"}
    command = [sys.executable, str(HERE / "play.py"), str(LIMIT)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=os.environ | setting) as playing:
        yield playing


def play(job: Job, player: subprocess.Popen[str]) -> None:
    """Run a page or a drawing, unless what it makes is there."""
    if not job.kept.exists():
        with tempfile.TemporaryDirectory() as folder:
            _play(job, player, Path(folder))


def _play(job: Job, player: subprocess.Popen[str], folder: Path) -> None:
    job.kept.parent.mkdir(parents=True, exist_ok=True)
    work = folder / "work"
    work.mkdir()
    assert player.stdin is not None
    assert player.stdout is not None
    print(json.dumps([str(job.source.resolve()), str(work)]), file=player.stdin, flush=True)
    answer = player.stdout.readline()
    if not answer:
        raise PluginError(f"{job.source}: what plays it has ended with code {player.wait()}")
    code, seconds = json.loads(answer)
    if code in (-signal.SIGXCPU, -signal.SIGKILL):
        raise PluginError(f"{job.source}: took more than {LIMIT} s of one core; make its problem smaller")
    if code:
        raise PluginError(f"{job.source}: cannot be run\n{(folder / 'errors').read_text().strip()[-2000:]}")
    made = Path(tempfile.mkdtemp(dir=job.kept.parent))
    (made / "seconds").write_text(f"{seconds:.1f}")
    for path in (folder / "printed", *folder.glob("outputs.json"), *work.glob("*.svg")):
        shutil.copy(path, made)
    try:
        # At once: a build that is stopped leaves nothing that looks whole.
        made.rename(job.kept)
    except OSError:
        if not job.kept.exists():
            raise
        shutil.rmtree(made)  # another build was faster


def _dark(text: str) -> str:
    for light, dark in INKS.items():
        text = text.replace(light, dark)
    return text


def _forget(used: set[Path], root: Path) -> None:
    """Drop what this build did not need, so that the cache does not grow."""
    for path in (root / ".cache" / "figures").glob("*"):
        if path not in used:
            shutil.rmtree(path)
