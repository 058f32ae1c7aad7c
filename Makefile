# Two commands matter: `make demo` and `make test`. Each sets up .venv by itself, once.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.ready
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: demo test suite fuzz lint types docs bench clean

demo: $(STAMP)
	$(BIN)/hamlearn reproduce --epochs 6 --out out/demo
	$(BIN)/hamlearn bench bundled --out out/demo

# Style and types first, since they fail soonest; the documentation is built beside the tests, which leave a core idle
# now and then. Files go to the two processes whole: what a file sets up once is then set up once, and the blocks of a
# page see the names of those above them.
test: $(STAMP)
	$(MAKE) --no-print-directory --jobs=2 --output-sync lint types
	$(MAKE) --no-print-directory --jobs=2 docs suite

suite: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --doctest-modules

# Two processes for MINUTES each; OUT=benchmarks/results/fuzz-….md keeps the summary. Exit code 1 where anything fails.
MINUTES ?= 30
SEED ?= 0
fuzz: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz --minutes $(MINUTES) --seed $(SEED) $(if $(OUT),--out $(OUT))

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	$(BIN)/lint-imports
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.dependabot .github/dependabot.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/bug.yml .github/ISSUE_TEMPLATE/proposal.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.compose-spec examples/deploy/compose.yaml
	$(BIN)/check-jsonschema --builtin-schema vendor.citation-file-format CITATION.cff
	$(BIN)/python -m pytest -q -p no:cacheprovider tests/docs/test_plain_words.py

types: $(STAMP)
	$(BIN)/mypy

export NO_MKDOCS_2_WARNING := 1

docs: $(STAMP)
	$(BIN)/mkdocs build --strict

bench: $(STAMP)
	$(BIN)/hamlearn bench --out benchmarks/results

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) install --quiet -c constraints.txt -e ".[dev]"
	touch $(STAMP)

clean:
	rm -rf .venv .cache site out
