# The whole project needs only make and a python3 of 3.11 or newer on PATH.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: setup demo test test-long chaos mutants bench bench-quick lint format lock
.DELETE_ON_ERROR:

setup: $(READY)

$(READY): pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "effect-outbox needs Python 3.11 or newer; $(PYTHON) is not. Try: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
		{ echo "$(PYTHON) has no venv or ensurepip; on Debian or Ubuntu: apt install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv --clear .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@: > $@

# DEMO_INPUT=file takes other deliveries, DEMO=stay leaves the stack running.
demo: export DEMO_INPUT := $(DEMO_INPUT)
demo: export DEMO := $(DEMO)
demo: $(READY)
	@$(BIN)/python -m examples.demo

# A good part of the tests waits, for ticks and leases: twice two cores' worth of processes keeps two cores busy.
TEST_PROCESSES ?= 4

test: lint
	$(BIN)/pytest -n $(TEST_PROCESSES)

# With what every run leaves out for its length.
test-long: lint
	OUTBOX_TEST_LONG=1 $(BIN)/pytest -n $(TEST_PROCESSES)

# Breaks promises on purpose, in a copy of the tree, and tells which breakage no test notices: minutes.
mutants: $(READY)
	@$(BIN)/python -m tests.mutants

# Real faults at real processes: SECONDS=3600 for a soak, SEED=7 to replay a plan, FAULTS=kill-worker,step-down for some.
SECONDS ?= 120
chaos: $(READY)
	@$(BIN)/python -m tests.chaos --seconds $(SECONDS) $(if $(SEED),--seed $(SEED)) $(if $(FAULTS),--faults $(FAULTS))

# Ratios against peers and the raw limit within one run: about half an hour on a machine that is left alone. Peers and
# results go to .bench; CASES=throughput,latency for some. docs/benchmarks.md says more.
BENCH = $(BIN)/python -m benchmarks $(if $(CASES),--cases $(CASES))

bench: $(READY)
	$(BENCH)

# Small sizes, under five minutes: for its counts, and to see that all of it runs.
bench-quick: $(READY)
	$(BENCH) --quick

lint: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

# Needs uv; a plain `make` never does.
lock:
	uv pip compile --universal --generate-hashes --extra embedded --extra dev --quiet \
		--no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" \
		pyproject.toml --output-file requirements.lock
	uv pip compile --universal --generate-hashes --constraint requirements.lock --quiet \
		--no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" --no-annotate \
		pyproject.toml --output-file compose/requirements.lock
