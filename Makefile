# Two commands do all the set-up on a machine with Python 3.11+ and make: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Applies to what is installed and to what builds it.
export PIP_CONSTRAINT := constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help demo test check lint docs coverage workflows faults chaos trial fuzz bench lock clean

help: ## List the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[all,dev]'
	@touch $@

$(VENV)/system: scripts/system_parts.sh | $(VENV)/installed
	sh scripts/system_parts.sh
	@touch $@

demo: $(VENV)/installed ## Race the four policies of the paper, express, federated averaging and gossip on the bundled digits data, and print where the report is
	$(BIN)/tramfl compare digits-5-uneven --methods load-aware,random,time-first,variance-first,express,fedavg,gossip --seeds 3 --out runs/demo --overwrite

test: $(VENV)/installed $(VENV)/system ## Run the tests, after installing the system parts they use
	$(BIN)/python -m pytest -n $$(($$(nproc) + 2)) --dist loadfile --no-loadscope-reorder  # sites, etcd and browsers wait a third of the time; a federation or browser a file, the slow ones first

lint: $(VENV)/installed ## Check style, types and layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

$(VENV)/docs: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	@touch $@

docs: export NO_MKDOCS_2_WARNING := 1
docs: $(VENV)/docs ## Build the documentation in site/, and check every link
	$(BIN)/python -m mkdocs build --strict
	$(BIN)/python -m scripts.docs.check_site site
	@echo "Open site/index.html"

$(VENV)/ci: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --editable '.[ci]'
	@touch $@

# What runs in processes of its own (real sites, a browser) is not counted: see [tool.coverage.run].
COVERED ?= tests --ignore=tests/chaos
coverage: $(VENV)/ci $(VENV)/system ## Run the tests and print which lines they reach in their own process
	$(BIN)/python -m pytest -n auto --dist loadfile --cov --cov-report=term:skip-covered --cov-report=xml $(COVERED)

workflows: $(VENV)/ci ## Check the files in .github, and CITATION.cff, against their schemas
	sh scripts/ci/workflows.sh

check: lint test ## Everything that must pass before a change lands

faults: $(VENV)/installed ## Play 10,000 fault schedules and check every invariant after every event
	$(BIN)/tramfl faults --schedules 10000 --jobs $$(nproc)

CODEC ?= float32

chaos: $(VENV)/installed $(VENV)/system ## Kill, stop, cut off and fill up real sites, with both registers (as root: all of it)
	$(BIN)/python -m pytest tests/chaos --everything --codec $(CODEC) -n 2 --dist loadfile

trial: $(VENV)/installed $(VENV)/system ## As root: sites far apart in network namespaces; print hops, a collapse, members, losses against goals
	$(BIN)/python -m benchmarks.trial

fuzz: $(VENV)/installed ## Feed a site 100,000 wrong messages and files, play a hostile member, and check that none does harm
	$(BIN)/python -m benchmarks.fuzz --inputs 100000 --actions 100000

BENCHMARKS := solvers simulation arena training pages federation predictors transfer codec signing

bench: $(VENV)/installed ## Measure what the documentation claims; all of it, also where a goal is missed
	@missed=; for part in $(BENCHMARKS); do \
	    echo "== $$part"; $(BIN)/python -m benchmarks.$$part || missed="$$missed $$part"; \
	done; \
	if [ -n "$$missed" ]; then echo "With a goal missed:$$missed"; exit 1; fi

lock: $(VENV)/docs $(VENV)/ci ## Write the installed versions to constraints.txt
	$(BIN)/python scripts/lock.py > constraints.new && mv constraints.new constraints.txt

clean: ## Remove what was built and installed here
	rm -rf $(VENV) site .coverage coverage.xml .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
