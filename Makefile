# Two commands do everything, set-up included, on a machine with Python (3.11 or newer), pip and make:
#   make demo    plan on an embedded model and show the result
#   make test    linter, type checker and the whole test suite
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

DEMO := --model garnet:states=50,actions=2,branching=4,discount=0.2,seed=1,reward_kind=bernoulli \
	--backup lse:temperature=1 --planner debiased:epsilon=0.01,delta=0.1

SEARCH := --model garnet:states=100000,actions=5,branching=2,discount=0.7,sparsity=0.5,seed=1 \
	--backup hard-max --planner ot-gape:epsilon=0.2,delta=0.1

.PHONY: demo test browser docs gallery faults format benchmarks clean

demo: $(VENV)/.core
	@echo "The price, before any simulator call is made:"; echo
	@$(BIN)/smoothplan forecast $(DEMO)
	@echo; echo "The plan, with the exact value beside it:"; echo
	@$(BIN)/smoothplan plan $(DEMO) --exact
	@echo; echo "Which action now, and how sure, at a long horizon (compiles for some seconds the first time):"; echo
	@$(BIN)/smoothplan decide --model river-swim:discount=0.99 --calls 100000
	@echo; echo "The best of five actions in a model with 100,000 states, by bounds:"; echo
	@$(BIN)/smoothplan plan $(SEARCH) --exact

test: $(VENV)/.dev browser
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest --numprocesses auto --dist loadgroup

# Kills workers, schedulers and clients at random moments, and compares with undisturbed runs: some minutes.
# What `make test` leaves out: tests and cases of tests that are slow, three kills of every kind, and a longer attack on
# the bounds.
faults: $(VENV)/.dev
	$(BIN)/pytest -m full
	$(BIN)/python -m tests.attack --minutes 4 --seed 0
	$(BIN)/python -m tests.faults --kills 3 --seed 0

# The documentation, into site/: open site/index.html.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "The documentation is in site/: open site/index.html"

# The evidence, into docs/gallery/: open docs/gallery/report.html. Ten minutes; an interrupted one goes on where it
# stopped. `make docs` takes it into the site.
gallery: $(VENV)/.dev
	$(BIN)/python -m studies run all --quick --out docs/gallery || test $$? = 1 # a claim that fails is shown, too
	$(BIN)/python -m studies report docs/gallery

# A Chromium for the tests of pages: one that is there, else apt's where we are root, else Playwright's own. Where none can
# be had those tests are skipped, and the end of `make test` says so.
browser: $(VENV)/.dev
	@$(BIN)/python -m tests.browser 2>/dev/null || { \
		echo "Installing a browser for the tests of pages (once) ..."; \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
			apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium; \
		fi >/dev/null 2>&1; \
		$(BIN)/python -m tests.browser 2>/dev/null || timeout 300 $(BIN)/playwright install chromium >/dev/null 2>&1; \
		$(BIN)/python -m tests.browser || echo "Going on without: tests of pages will be skipped"; }

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

benchmarks: $(VENV)/.dev
	@for script in benchmarks/*.py; do echo "== $$script"; PYTHONPATH=. $(BIN)/python $$script || exit 1; done

# Some systems split `venv` from Python: there, virtualenv is fetched into a folder of our own.
$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "smoothplan needs Python 3.11 or newer; set PYTHON=")'
	@echo "Setting up $(VENV) (once) ..."
	@$(PYTHON) -m venv $(VENV) 2>/dev/null || { \
		rm -rf $(VENV) && \
		$(PYTHON) -m pip install --quiet --target .bootstrap virtualenv && \
		PYTHONPATH=.bootstrap $(PYTHON) -m virtualenv --quiet $(VENV); }
	@touch $@

$(VENV)/.core: $(VENV)/.made pyproject.toml constraints.txt
	@$(INSTALL) --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.core
	@$(INSTALL) --editable '.[dev]'
	@touch $@

$(VENV)/.docs: $(VENV)/.core
	@$(INSTALL) --editable '.[docs,plots]'
	@touch $@

clean:
	rm -rf $(VENV) site .bootstrap .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
	find src studies tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +
