# Everything needs only make and Python 3.11 or newer; the rest goes into .venv.
#
#   make test ARGS="-k fence -x"        more arguments for pytest (run: for the demo)
#   make test WORKERS=0 ARGS=--pdb      in one process, as bare pytest does
#   make venv PYTHON=python3.13         the Python that a new .venv is made from (`make clean` drops the old one)

PYTHON ?= python3
ARGS ?=
WORKERS ?= 10
SECONDS ?= 600
BACKENDS ?=
VENV ?= .venv
BIN := $(VENV)/bin

# -qq leaves errors only. The build backend is pinned too: the first variable is read by pip from 25.3 on, the second
# by older ones; both hand the file on to the isolated build.
PIP_INSTALL = PIP_BUILD_CONSTRAINT=constraints.txt PIP_CONSTRAINT=constraints.txt \
	$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help venv servers run test test-all test-core lint format readme docs site site-serve cover sim publish-sim soak bench capacity safety failovers dist clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' Makefile | \
	while IFS='|' read -r target does; do printf '  make %-11s %s\n' "$$target" "$$does"; done

venv: $(VENV)/.dev ## set up .venv with holdfast and the dev tools

run: $(VENV)/.package ## set up .venv and show locks at work, on the embedded default
	@$(BIN)/holdfast demo $(ARGS)

servers: $(VENV)/.dev ## install the servers and shells that the tests start: with apt-get if root, and into .venv/servers
	@tools/install-servers $(VENV)

# Most tests wait for a server or a clock, so there are more workers (tests/support/forked_run.py) than cores.
PYTEST = pytest --workers $(WORKERS) $(ARGS)

# Hundreds of tests start a Python of their own, and each worker reads all test files: what is compiled is kept, wherever
# the environment forbids that too, but out of the way.
KEEP := PYTHONDONTWRITEBYTECODE= PYTHONPYCACHEPREFIX="$(abspath $(VENV))/pycache"

test: servers ## run the tests, in WORKERS processes
	@$(KEEP) $(BIN)/python -m $(PYTEST)

# Any one patch release stands for its minor version.
PROBE := import sys, venv, ensurepip; v = sys.version_info; print("%d.%d.%d" % v[:3]); sys.exit(v < (3, 11))

test-all: ## run all tests of all methods on every installed Python >= 3.11, each in its own .venvs/<version>
	@seen=; summary=; status=0; \
	pyenv=$$(pyenv root 2>/dev/null) || pyenv=$$HOME/.pyenv; \
	for python in "$(PYTHON)" python3.11 python3.12 python3.13 python3.14 python3.15 \
			"$$pyenv"/versions/3.*/bin/python3; do \
		version=$$("$$python" -c '$(PROBE)' 2>/dev/null) || continue; \
		case "$$seen " in *" $${version%.*} "*) continue ;; esac; \
		seen="$$seen $${version%.*}"; \
		echo "== Python $$version"; \
		if $(MAKE) --no-print-directory test VENV=".venvs/$$version" PYTHON="$$python" ARGS="$(ARGS) --all-methods"; \
		then result=passed; else result=FAILED; status=1; fi; \
		summary="$$summary  Python $$version: $$result\n"; \
	done; \
	if [ -z "$$seen" ]; then echo "holdfast: no Python >= 3.11 with the venv module found" >&2; exit 1; fi; \
	printf "== Summary\n$$summary"; \
	exit $$status

test-core: ## run the unit and conformance tests without compiled tools and drivers: on a Python that these have no wheels for
	@$(MAKE) -s --no-print-directory VENV=.venvs/core .venvs/core/.core
	@tools/install-servers .venvs/core
	@.venvs/core/bin/python -m $(PYTEST) tests/unit tests/conformance

lint: $(VENV)/.dev ## check style, format and types
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright --pythonpath $(BIN)/python

format: $(VENV)/.dev ## rewrite the code in the house format, with the safe fixes
	@$(BIN)/ruff check --fix-only
	@$(BIN)/ruff format

readme: $(VENV)/.dev ## write the table of guarantees into README.md and docs/choosing-a-store.md, help and backends into docs/cli*.md
	@$(BIN)/python tests/structure/test_readme.py
	@PYTHONPATH=. $(BIN)/python tests/integration/cli/test_docs.py

docs: $(VENV)/.dev ## write docs/reference.md from the docstrings, and docs/internals/import-graph.svg from the imports
	@$(BIN)/python tools/reference.py
	@$(BIN)/python tools/import_graph.py

site: $(VENV)/.dev ## build the documentation site into build/site/html; a broken link is an error
	@$(BIN)/python -m tools.build_site build build/site
	@echo "holdfast: the site is in build/site/html"

site-serve: $(VENV)/.dev ## serve the documentation site on http://localhost:8000, and follow changes
	@$(BIN)/python -m tools.build_site serve build/site $(ARGS)

cover: servers ## run the tests and report coverage, child processes included
	@$(BIN)/coverage erase
	@$(BIN)/coverage run -m $(PYTEST)
	@$(BIN)/coverage combine -q
	@$(BIN)/coverage report

SEEDS ?= 10000
WORKLOADS ?= locks everything
SHARDS ?=
LEDGER ?= .search-ledger.jsonl

sim: $(VENV)/.dev ## search for faults that break a promise: SEEDS worlds of each backend and workload, and all small ones
	@$(BIN)/python -m holdfast_lab.long_search --ledger $(LEDGER) --seeds $(SEEDS) --workloads $(WORKLOADS) \
		$(if $(BACKENDS),--backends $(BACKENDS)) $(if $(SHARDS),--shards $(SHARDS)) $(ARGS)

publish-sim: $(VENV)/.dev ## add the ledger of `make sim` to docs/search-ledger.jsonl and docs/track-record.md
	@$(BIN)/python -m holdfast_lab.long_search --ledger $(LEDGER) --publish docs

soak: servers ## every backend in turn under load and random faults; SECONDS=600 in all, BACKENDS="redis etcd" for some
	@$(BIN)/python -m tests.soak --seconds $(SECONDS) $(if $(BACKENDS),--backends $(BACKENDS)) $(ARGS)

bench: ## measure speed, with peers in the same run, in .venv-bench; 27 minutes, ARGS=--quick for six
	@$(MAKE) -s --no-print-directory VENV=.venv-bench .venv-bench/.bench
	@.venv-bench/bin/python -m benchmarks $(ARGS)

capacity: servers ## measure what one server of each store carries, and write docs/capacity.md and docs/scaling.md; about 20 minutes
	@$(BIN)/python -m benchmarks.capacity --publish $(ARGS)

safety: ## put holdfast and other libraries' locks through the same faults, and write docs/safety.md; about 20 minutes
	@$(MAKE) -s --no-print-directory VENV=.venv-bench .venv-bench/.bench
	@.venv-bench/bin/python -m benchmarks.safety $(ARGS)

failovers: servers ## real failovers, restarts and migrations under load; writes docs/failovers.md; about an hour, ARGS="--only NAME" for one
	@$(BIN)/python -m packages.lab.scenarios $(ARGS)

dist: ## build the wheels and source archives of both distributions into dist/, and check them
	@$(MAKE) -s --no-print-directory VENV=.venv-dist .venv-dist/.dist
	@rm -rf dist
	@for folder in . packages/lab; do \
		.venv-dist/bin/python -m build --no-isolation --outdir dist $$folder >.venv-dist/build.log 2>&1 || { \
			cat .venv-dist/build.log >&2; exit 1; }; \
	done
	@.venv-dist/bin/twine check --strict dist/*
	@.venv-dist/bin/check-wheel-contents dist

clean: ## remove all that make and the tools have made
	rm -rf .venv .venvs .venv-bench .venv-dist benchmarks/results build dist htmlcov .coverage .coverage.* .mypy_cache .pytest_cache .ruff_cache
	@for folder in src packages tests benchmarks tools; do \
		if [ -d $$folder ]; then find $$folder -type d -name __pycache__ -prune -exec rm -rf {} +; fi; \
	done

# Two stamps, so that `make run` needs no dev tools. A changed pyproject.toml or constraints.txt is newer than both.
ifneq ($(shell test -x $(BIN)/python && echo there),there)
.PHONY: $(VENV)/.package # its Python is not there yet, or has gone: the stamps count for nothing
endif

$(VENV)/.package: $(BIN)/python pyproject.toml constraints.txt
	@$(PIP_INSTALL) -e .
	@touch $@

# One command for both packages: the lab needs this version of holdfast, which no index has. The pip that comes with a
# Python may be older than 25.1 and know no groups, so the one of constraints.txt is installed first.
$(VENV)/.dev: $(VENV)/.package packages/lab/pyproject.toml
	@echo "holdfast: installing the dev tools into $(VENV)"
	@$(PIP_INSTALL) pip
	@$(PIP_INSTALL) -e . -e packages/lab --group dev
	@touch $@

$(VENV)/.core: $(VENV)/.package packages/lab/pyproject.toml
	@echo "holdfast: installing the tools for the unit tests into $(VENV)"
	@$(PIP_INSTALL) pip
	@$(PIP_INSTALL) -e . -e packages/lab --group core
	@touch $@

$(VENV)/.dist: $(BIN)/python pyproject.toml constraints.txt
	@echo "holdfast: installing the tools for distributions into $(VENV)"
	@$(PIP_INSTALL) pip
	@$(PIP_INSTALL) hatchling --group release
	@touch $@

# The servers of benchmarks are those of the tests, whose support is in the lab, as `holdfast verify` is.
$(VENV)/.bench: $(VENV)/.package packages/lab/pyproject.toml benchmarks/peers.txt benchmarks/peers-apart.txt \
		benchmarks/peers-built.txt
	@echo "holdfast: installing the peers into $(VENV)"
	@$(PIP_INSTALL) -e . -e packages/lab
	@$(PIP_INSTALL) -r benchmarks/peers.txt
	@$(PIP_INSTALL) --no-deps --upgrade --target $(VENV)/apart -r benchmarks/peers-apart.txt
	@$(PIP_INSTALL) -r benchmarks/peers-built.txt 2>/dev/null || { \
		echo "holdfast: installing $(HEADERS) with apt-get, to compile the peers that have no wheel"; \
		$(APT_INSTALL) >/dev/null 2>&1 || { apt-get update -qq && $(APT_INSTALL); } >/dev/null 2>&1; \
		$(PIP_INSTALL) -r benchmarks/peers-built.txt; \
	} || echo "holdfast: without the peers of benchmarks/peers-built.txt, which could not be compiled" >&2
	@touch $@

HEADERS := libmemcached-dev zlib1g-dev
APT_INSTALL = apt-get install -qq -y --no-install-recommends $(HEADERS)

$(BIN)/python:
	@command -v "$(PYTHON)" >/dev/null || { \
		echo "holdfast: '$(PYTHON)' not found. Install Python 3.11 or newer," \
			"or name one: make PYTHON=/path/to/python3" >&2; \
		exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "holdfast: needs Python 3.11 or newer, but '$(PYTHON)' is $$("$(PYTHON)" -V 2>&1)." \
			"Name a newer one: make PYTHON=/path/to/python3" >&2; \
		exit 1; }
	@"$(PYTHON)" -c 'import venv, ensurepip' 2>/dev/null || { \
		echo "holdfast: '$(PYTHON)' lacks the venv module." \
			"On Debian and Ubuntu it is in the package python3-venv." >&2; \
		exit 1; }
	@echo "holdfast: setting up $(VENV) with $$("$(PYTHON)" -V)"
	@"$(PYTHON)" -m venv --clear "$(VENV)"
