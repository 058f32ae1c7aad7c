"""Pages and examples are run as their readers run them, once for the site and the tests together."""

import ast
import functools
from contextlib import ExitStack

import pytest

from tests.docs.pages import DOCS, ROOT, hook

figures = hook("figures")
JOBS = {f"{job.folder}/{job.source.stem}": job for job in figures.jobs(ROOT, DOCS)}
# Others are run by tests/test_examples.py: their drawings take parts of them.
WHOLE = [
    job
    for name, job in JOBS.items()
    if job.source.suffix == ".py" and f"{job.source.stem}.main(" in job.source.read_text()
]


@pytest.fixture(scope="module")
def played():
    """Runs a page or an example; one process serves them all, started where the site has not run them all."""
    with ExitStack() as stack:
        start = functools.cache(lambda: stack.enter_context(figures.player()))

        def played(job):
            if not job.kept.exists():
                figures.play(job, start())

        yield played


@pytest.mark.slow
@pytest.mark.parametrize("name", JOBS)
def test_a_page_or_an_example_runs_without_a_warning_and_saves_what_it_shows(name, played):
    job = JOBS[name]
    played(job)
    if job.source.suffix == ".py" or "savefig(" in job.source.read_text():
        assert list(job.kept.glob("*.svg"))


@pytest.mark.slow
@pytest.mark.parametrize("job", WHOLE, ids=lambda job: job.source.stem)
def test_an_example_that_the_gallery_runs_is_its_function_main_and_prints_what_it_found(job, played):
    *_, guard = ast.parse((ROOT / "examples" / job.source.name).read_text()).body
    assert ast.unparse(guard).startswith("if __name__ == '__main__':\n    main(")
    assert len(guard.body) == 1
    played(job)
    assert (job.kept / "printed").read_text().strip()
