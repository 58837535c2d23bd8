# make demo    one real run through all five phases, from nothing but Python
# make test    everything that CI checks
# make prove   every layout against one device: families x axes x features, pairwise, in float64; planted faults
# make plan-accuracy  predictions against published runs, by source; exit 1 when a bar is missed
# make plan-local   local layouts predicted, then run: error and order
# make plan-memory    the planner's memory against the dry run of the real code; exit 1 when a layout is beyond 3 %
# make drills  every fault drill, slow ones too; writes the table docs/drills.md; exit 1 when one fails that is not known to
# make soak    hundreds of kills at random instants (40 minutes)
# make bench   ratios against the shortest hand-written loop, and of start-up; the dry run at full depth
# Each sets up .venv first; PYTHON chooses the interpreter (3.11 or later).

PYTHON ?= python3
BIN := .venv/bin
JOBS ?= 2
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo test lint prove drills soak bench plan-accuracy plan-local plan-memory clean

.venv/.run: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Paceline needs Python 3.11 or later: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -q -c constraints.txt -e .
	@touch $@

.venv/.dev: .venv/.run
	$(BIN)/pip install -q -c constraints.txt -e '.[dev]'
	@touch $@

demo: .venv/.run
	$(BIN)/python examples/demo.py

lint: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/mypy

# What is arithmetic goes over both cores; what starts processes of its own has them to itself.
ARITHMETIC := tests/plan tests/job tests/evidence

test: lint
	$(BIN)/python -m pytest -n 2 $(ARITHMETIC)
	$(BIN)/python -m pytest tests $(addprefix --ignore=,$(ARITHMETIC))

prove: .venv/.dev
	$(BIN)/python -m tests.prove.matrix
	$(BIN)/python -m pytest -m proof

drills: .venv/.dev
	$(BIN)/python -m tests.drills.table

soak: .venv/.dev
	$(BIN)/python -m pytest -m soak tests/drills

bench: .venv/.dev
	$(BIN)/python benchmarks/step_overhead.py
	$(BIN)/python benchmarks/start.py
	$(BIN)/python -m benchmarks.restart
	$(BIN)/python benchmarks/dry_run_depth.py

plan-accuracy: .venv/.dev
	$(BIN)/python -m benchmarks.plan_accuracy

plan-local: .venv/.dev
	$(BIN)/python -m benchmarks.local_layouts --fresh

plan-memory: .venv/.dev
	$(BIN)/python -m benchmarks.plan_memory

clean:
	rm -rf .venv build dist *.egg-info
