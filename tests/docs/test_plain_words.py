"""Documentation and the prose of the library are plain technical English: other phrases are reported."""

import io
import re
import tokenize
from pathlib import Path

import pytest

# Folders, of which .md and .py files are read, and files. Dated reports stay as they were written.
ROOTS = (
    "docs",
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    ".github",
    "examples",
    "benchmarks",
    "src/hamlearn",
)
REPORTS = "results"

# Code, HTML comments, addresses, and names of parameters and errors in docstrings are not prose.
NOT_PROSE = re.compile(r"^ *```.*?^ *```|<!--.*?-->|`[^`\n]*`|\]\([^)]*\)|^ +\w+(?=: )", re.DOTALL | re.MULTILINE)

# From Python 3.12 on, an f-string is several tokens.
PARTS = {getattr(tokenize, "FSTRING_MIDDLE", None)}
QUOTES = {getattr(tokenize, name, None) for name in ("FSTRING_START", "FSTRING_END")}
OPENING = re.compile(r"#+|[a-zA-Z]*(\"{3}|'{3}|\"|')")

# What is looked for, with a space wherever words may be separated by a line break, and what to write instead.
PLAIN = {
    r"\btold\b|\bhears? (of|from|about)\b": "say who reports what: gets, receives, warns",
    r"\banew\b": "again",
    r"\bknows\b": "has, keeps, is given",
    r"\bnobody\b|\bsomebody\b|\beverybody\b|\bwhoever\b": "name the person or the part, or use the passive",
    r"\bnought\b": "zero",
    r"\bmend(s|ed|ing)?\b": "repair, fix",
    r"\blent\b": "borrowed, given",
    r"(?<!there )\b(is|are|was|were) no (?!(longer|more|less|better|worse)\b)": "is not a …, has no …, must be …",
    r"\bthere (is|are) no \S+ to\b": "a direct sentence: X has no …, X does not …",
    r"(?-i:\b[Rr]efus\w+\b)": "raises `ConfigError` (or the error that it is), which names …",
    r"\bto the (very |last )?bit\b|\bbit for bit\b": "bit-for-bit",
    r"\bway back\b": "backward pass",
    r"\bdials?\b": "choice, setting",
    r"\bnews\b": "loss, signal, value",
    r"\broom for\b|\bshel(f|ves)\b": "space, cache",
    r"\b(go|goes|going|went|gone) on\b": "continue",
    r"\bset aside\b": "frozen",
    r"\boob\b|\beq:\w+": "a short description and the number in print",
    r"\bset free\b": "released, freed",
    r"\bforthwith\b|\bwhence\b|\bhenceforth\b|\bthereof\b": "a word of today",
    r"\btells? \S+( \S+){0,2} apart\b|\btold apart\b": "distinguish, classify",
    r"(^\s*|[.:;] |\*\*)(?-i:What) (is|are|was|were|has|have) [^?.:|#]*\.": "a noun: dropped messages are …",
}
PATTERNS = {
    re.compile(bad.replace(" ", r"\s+").replace(r"there\s+", r"there\s"), re.I | re.M): good
    for bad, good in PLAIN.items()
}


def prose_of(file: Path) -> str:
    """Text of a file. Of a Python file comments and strings stay; quotes are spaces, and other code is dots."""
    text = file.read_text(encoding="utf-8")
    if file.suffix != ".py":
        return text
    lines = [re.sub(r"\S", "·", line) for line in text.split("\n")]
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        kept = token.string
        if token.type in QUOTES:
            kept = " " * len(kept)
        elif token.type in (tokenize.COMMENT, tokenize.STRING):
            kept = _without_quotes(kept)
        elif token.type not in PARTS:
            continue
        row, column = token.start
        for number, part in enumerate(kept.split("\n"), row - 1):
            lines[number] = lines[number][:column] + part + lines[number][column + len(part) :]
            column = 0
    return "\n".join(lines)


def _without_quotes(text: str) -> str:
    """A comment or string with spaces for its quotes, and dots for the expressions of an f-string."""
    opening = OPENING.match(text)
    if "f" in opening[0].lower():
        text = re.sub(r"\{[^{}]*\}", lambda part: re.sub(r"\S", "·", part[0]), text)
    end = len(text) - len(opening[1] or "")
    return " " * opening.end() + text[opening.end() : end] + " " * (len(text) - end)


def habits(*roots: Path) -> list[str]:
    """One line for each phrase that is not plain: file, line, phrase, and what to write instead."""
    found = []
    for root in roots:
        files = (
            [root] if root.is_file() else sorted(path for path in root.rglob("*") if path.suffix in (".md", ".py"))
        )
        for file in (file for file in files if REPORTS not in file.parts):
            prose = NOT_PROSE.sub(lambda part: re.sub(r"[^\n]", "·", part[0]), prose_of(file))
            for pattern, good in PATTERNS.items():
                for hit in pattern.finditer(prose):
                    first = hit.start() + re.search(r"\w", hit[0]).start()
                    line = prose.count("\n", 0, first) + 1
                    found.append(f"{file}:{line}: {' '.join(hit[0].split())!r}: write {good}")
    return found


def test_prose_is_plain():
    repository = Path(__file__).parents[2]
    found = habits(*(repository / root for root in ROOTS))
    assert not found, "\n".join(found)


SENTENCES = [
    "Nobody is told.",
    "It is read anew.",
    "Whoever asks gets nought.",
    "A mended file.",
    "Memory is lent.",
    "The step is refused by name.",
    "It goes on as before.",
    "It is set\naside.",
    "5 is no stream.",
    "Equal to the\nlast bit.",
    "What is dropped is counted.",
]


@pytest.mark.parametrize("sentence", SENTENCES)
def test_a_planted_phrase_is_reported_with_its_line(tmp_path, sentence):
    page = tmp_path / "page.md"
    page.write_text(f"There is no training set; `told` is code.\n\n{sentence}\n")
    found = habits(tmp_path)
    assert found
    assert all(line.startswith(f"{page}:3:") for line in found)


def test_code_is_not_prose(tmp_path):
    (tmp_path / "page.md").write_text("`told`, [a page](told.md)\n\n```sh\nhamlearn told\n```\n\n<!-- told -->\n")
    assert habits(tmp_path) == []


def test_comments_and_strings_of_python_are_prose_and_names_are_not(tmp_path):
    module = tmp_path / "module.py"
    module.write_text(
        'told = {"a": told}\n'
        "# It is\n"
        "# no stream.\n"
        "def refuse(told):\n"
        '    """Take `told`.\n\n'
        "    Args:\n"
        "        told: What is taken.\n"
        '    """\n'
        '    raise told(f"{told} is "\n'
        "               f'no stream')\n"
    )
    assert [line.split(":")[1] for line in habits(tmp_path)] == ["2", "10", "8"]
