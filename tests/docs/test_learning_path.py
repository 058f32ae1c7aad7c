"""What the site promises to a new reader: a path of tutorials, a gallery of all examples, one first screen."""

import re
from pathlib import Path

import pytest
from mkdocs.config import load_config

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
TUTORIALS = sorted((DOCS / "tutorials").glob("[0-9]*.md"))
EXAMPLES = sorted([*(ROOT / "examples").glob("*.py"), ROOT / "examples" / "agent" / "agent.py"])


def test_there_are_eight_tutorials_in_the_nav_in_their_order():
    assert [path.name[0] for path in TUTORIALS] == list("01234567")
    nav = re.findall(r"tutorials/(\d-[\w-]+\.md)", (ROOT / "mkdocs.yml").read_text())
    assert nav == [path.name for path in TUTORIALS]


def test_no_section_of_the_navigation_has_more_than_twelve_entries_and_every_page_is_in_it():
    nav = load_config(str(ROOT / "mkdocs.yml")).nav
    sections, found = [nav], []
    while sections:
        section = sections.pop()
        assert len(section) <= 12
        for entry in section:
            (content,) = entry.values()
            (found if isinstance(content, str) else sections).append(content)
    assert sorted(found) == sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_has_a_goal_shows_what_its_code_draws_and_says_what_to_notice_try_and_read_next(path):
    text = path.read_text()
    saved = re.findall(r'savefig\("([\w-]+\.svg)"\)', text)
    assert saved
    assert re.findall(r"!\[[^\]]+\]\(([\w-]+\.svg)\)", text) == saved
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert headings[-2:] == ["Try", "Where next"]
    assert re.search(r"^# \d\. .*\n\n\*\*Goal:\*\* ", text)
    assert "otice" in text
    assert "](../" in text.partition("## Where next")[2]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_in_the_gallery_with_its_figure_its_code_and_its_time(path):
    name, text = path.stem, (DOCS / "gallery" / "index.md").read_text()
    (entry,) = [part for part in text.split("\n### ") if f"]({name}.svg)" in part]
    assert f"{{ #{name.replace('_', '-')} }}" in entry
    assert f"\n{{code of {path.relative_to(ROOT)}}}\n" in entry
    assert f"{{seconds of {name}}}" in entry or "until you stop it" in entry
    assert f'savefig("{name}.svg")' in (DOCS / "_gallery" / f"{name}.py").read_text()


def test_no_drawing_is_left_over():
    assert {path.stem for path in (DOCS / "_gallery").glob("*.py")} == {path.stem for path in EXAMPLES}


def test_home_and_readme_begin_with_the_same_sentences_commands_and_code():
    home, readme = ((path).read_text() for path in (DOCS / "index.md", ROOT / "README.md"))
    introduction, commands, _, code = home.split("```")[:4]
    assert readme.startswith(introduction)
    assert f"```{commands}```" in readme
    assert f"```{code}```" in readme
