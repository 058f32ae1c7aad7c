"""The pages of the site, and the hooks that make parts of them."""

import importlib
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def hook(name):
    """A module of `docs/_hooks`, loaded as MkDocs loads it: with its siblings beside it."""
    folder = str(DOCS / "_hooks")
    sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(folder)


def pages(*folders):
    """Texts by path, of the pages in these folders of the documentation."""
    return {path: path.read_text() for folder in folders for path in sorted((DOCS / folder).glob("*.md"))}


def documented():
    """The names that the reference documents, and the modules that it documents whole."""
    return {name for text in pages("api").values() for name in re.findall(r"^::: ([\w.]+)$", text, re.MULTILINE)}


def links(path, text):
    """The pages that a page links to."""
    return {(path.parent / target).resolve() for target in re.findall(r"\]\(([^)#:\s]+\.md)(?:#[^)\s]*)?\)", text)}
