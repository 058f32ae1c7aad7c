"""Every public name is explained by an example, stands in the reference, and can be found from a how-to page."""

import importlib.util
import inspect
import re
import sys
import types

import pytest
import torch

import hamlearn as hl
from tests.cli import invoke
from tests.docs.pages import DOCS, ROOT, documented, hook, links, pages

SPACES = [
    "hamlearn",
    *(f"hamlearn.{name}" for name in hl.__all__ if isinstance(getattr(hl, name), types.ModuleType)),
    "hamlearn.credit",
    "hamlearn.evaluate",
    "hamlearn.experiments.data",
    "hamlearn.experiments.reproduce",
    "hamlearn.integrators",
    "hamlearn.interop.river",
    "hamlearn.serve",
    "hamlearn.streams.signals",
    "hamlearn.watch",
]


def public(space):
    """The names of a module that are meant for users, with what they stand for."""
    importlib.import_module(space)
    # `hamlearn.evaluate` is a function wherever it is looked up by name.
    module = sys.modules[space]
    listed = getattr(module, "__all__", None) or [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == space
    ]
    found = {name: getattr(module, name) for name in listed}
    return {name: value for name, value in found.items() if not isinstance(value, types.ModuleType)}


@pytest.mark.parametrize("space", SPACES)
def test_every_public_name_has_a_docstring_with_an_example(space):
    things = {name: value for name, value in public(space).items() if inspect.isclass(value) or callable(value)}
    things = {name: value for name, value in things.items() if isinstance(value, type | types.FunctionType)}
    assert things
    assert [name for name, value in things.items() if ">>> " not in (value.__doc__ or "")] == []


@pytest.mark.parametrize("space", SPACES)
def test_every_public_name_stands_in_the_reference(space):
    known = documented()
    missing = [
        name
        for name, value in public(space).items()
        if not known & {space, f"{space}.{name}", f"{getattr(value, '__module__', '')}.{name}", f"hamlearn.{name}"}
    ]
    assert missing == []


def test_every_name_in_the_reference_exists_and_is_not_taken_for_a_module_of_the_same_name():
    for name in sorted(documented() - {"hamlearn.errors", "hamlearn.reference"}):
        space, _, last = name.rpartition(".")
        importlib.import_module(space)
        assert hasattr(sys.modules[space], last), name
        if hasattr(sys.modules[space], "__path__"):
            assert importlib.util.find_spec(name) is None, name


def test_every_reference_page_is_linked_from_a_how_to_or_a_tutorial():
    guides = pages("", "how-to", "tutorials")
    reached = {target for path, text in guides.items() for target in links(path, text)}
    assert [path.name for path in pages("api", "reference") if path.resolve() not in reached] == []


def test_the_command_reference_has_every_command_argument_and_option_that_help_shows():
    text = hook("generated").filled((DOCS / "reference" / "commands.md").read_text())
    shown = invoke("--help", env={"COLUMNS": "400"}).output
    names = re.findall(r"^│ (\w+) ", shown.partition("Commands")[2], re.MULTILINE)
    assert {"run", "serve", "bench", "reproduce", "report", "watch", "config"} <= set(names)
    assert set(names) == {name.split()[0] for name in hook("commands").commands()}
    for name in hook("commands").commands():
        _, found, section = text.partition(f"\n## hamlearn {name}\n")
        section = section.partition("\n## ")[0]
        assert found, name
        helped = invoke(*name.split(), "--help", env={"COLUMNS": "400"}).output
        options = set(re.findall(r"^│ +\*? *(--[a-z-]+)(?:[ ,]+(--no-[a-z-]+))?", helped, re.MULTILINE))
        shown_options = {word for pair in options for word in pair if word} - {"--help"}
        taken = hook("commands").parameters(hook("commands").commands()[name])
        assert {word for one in taken for word in re.findall(r"--[a-z-]+", one.names)} == shown_options, name
        for one in taken:
            assert f"| {one.names} | {one.takes} | {one.default} | {one.meaning} |" in section


def test_the_configuration_reference_has_every_key_with_what_it_takes_and_its_default():
    from hamlearn.experiments.run.config import check

    parts = {part.heading: part for part in hook("configuration").parts()}
    text = hook("generated").filled((DOCS / "reference" / "configuration.md").read_text())
    config = check({"stream": {"kind": "signals.henon"}})
    for section, values in config.items():
        rows = {row.key: row for row in parts[f"`[{section}]`"].rows}
        if section != "stream":
            assert set(rows) == set(values), section
        for key, row in rows.items():
            assert f"| `{key}` | {row.takes} | {row.default} |" in text
            if section != "stream" and values.get(key) is not None:
                assert str(values[key]).lower() in row.default.lower(), (section, key)


def test_the_meaning_of_a_key_is_what_the_class_says_of_its_argument():
    rows = {
        row.key: row for part in hook("configuration").parts() if part.heading == "`[hyper]`" for row in part.rows
    }
    assert rows["eta"].meaning.startswith("Dissipation η of ω.")
    assert hook("configuration").arguments(hl.Echo)["truncate"].startswith("How many tokens echo")


def test_the_error_index_says_of_every_error_when_it_is_raised_and_what_to_do():
    index = hook("error_index")
    text = hook("generated").filled((DOCS / "api" / "errors.md").read_text())
    names = {error.__name__ for error in index.listed()}
    assert names >= {name for name, value in vars(hl.errors).items() if inspect.isclass(value)}
    for error in index.listed():
        when, remedy = index.parts(error)
        assert "" not in (when, remedy)
        assert f"[`{error.__name__}`]" in text
        assert remedy in text


def test_no_page_keeps_a_mark_that_nothing_fills():
    generated = hook("generated")
    for path, text in pages("", "api", "reference", "how-to", "explanation").items():
        for name in generated.MARK.findall(text):
            assert name in generated.MAKERS, (path.name, name)


def test_every_formula_becomes_mathml_without_leftovers_of_latex():
    formulas = [
        formula
        for text in pages("", "explanation").values()
        for formula in re.findall(r"^```math\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    ]
    assert len(formulas) > 15
    for formula in formulas:
        made = hook("mathematics").formula(formula, "math", "formula", {}, None)
        assert made.startswith('<div class="formula"><math')
        assert not re.search(r"\\|&amp;|&#x00026;|>&<", made), formula


def test_every_source_file_that_a_page_names_exists():
    named = {
        name
        for text in pages("", "api", "reference", "how-to", "explanation").values()
        for name in re.findall(
            r"`((?:src/hamlearn|tests|benchmarks|examples|docs)/[\w/.-]+\.(?:py|toml|md))`", text
        )
    }
    assert "src/hamlearn/rules/sequential.py" in named
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_every_equation_of_the_reference_is_derived_on_a_page_that_links_to_it_and_back():
    derived = "\n".join(pages("explanation").values())
    index = (DOCS / "api" / "reference.md").read_text().partition("::: ")[0]
    functions = [name for name in hl.reference.__all__ if inspect.isfunction(getattr(hl.reference, name))]
    labelled = [name for name in functions if name not in ("run", "start")]
    assert len(labelled) == 7
    for name in labelled:
        assert f"](../api/reference.md#hamlearn.reference.{name})" in derived, name
        (row,) = [line for line in index.splitlines() if f"`{name}`" in line]
        assert "](../explanation/" in row, name


def test_the_main_objects_say_what_they_are():
    def make(hyper):
        return hl.Learner(hl.Network.feedforward(torch.nn.Linear(2, 1)), torch.nn.functional.mse_loss, hyper)

    learner, hyper = make(hl.Hyper()), hl.Hyper(eta=0.5)
    assert re.match(
        r"Learner\(output net with 3 weights, loss=mse_loss, order='sequential', credit=Cleared", repr(learner)
    )
    assert repr(hyper).startswith("Hyper(tau=1.0, eta=0.5, beta=0.01")
    assert "(output): Linear(in_features=2, out_features=1" in repr(learner.network)
    population = hl.Population(make, hyper, seeds=[0, 1])
    assert repr(population).startswith("Population(2 members, one stream for all, the first: Learner(output net")
