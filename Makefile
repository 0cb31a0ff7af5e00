# One way in for each thing one does here. `make help` lists them.

PYTHON ?= $(firstword $(shell command -v python3.11 python3.12 python3.13 python3))
BIN := .venv/bin
WORKERS ?= 2
EXTRAS := spark,connect,cluster,schemas,plots,demo,bench,dev

.PHONY: help setup demo test lint bench soak faults proto clean
help:            ## show this
	@sed -n 's/^\([a-z-]*\): *\([^#]*\)## \(.*\)/  make \1\t\3/p' $(MAKEFILE_LIST) | expand -t 16

setup: .venv/ready      ## make the environment in .venv

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[$(EXTRAS)]'
	touch $@

demo: setup      ## flights and weather through the log and Spark into Delta tables, end to end
	$(BIN)/millrace demo

test: setup      ## the whole suite, from nothing, by as many processes as WORKERS says
	$(MAKE) lint
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile

lint: setup      ## style, types and import contracts
	$(BIN)/ruff check --no-cache .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: setup     ## us and the peers in turn; ONLY=<name> runs one benchmark
	$(BIN)/python -m benchmarks $(if $(ONLY),--only $(ONLY))

sim: setup       ## whole clusters in one process, a seed each; SEEDS=<n>, FIRST=<seed>, SEED=<one>, PLANTED=1
	$(BIN)/python -m tests.simulation.cluster $(if $(SEEDS),--seeds $(SEEDS) --keep-going) $(if $(FIRST),--first $(FIRST)) $(if $(SEED),--seed $(SEED)) $(if $(PLANTED),--planted) $(if $(PLANT),--plant "$(PLANT)")

soak: setup      ## the tests that kill and search at random, for hours; HOURS=<n>, ONLY=<suites>; writes docs/soak.md
	$(BIN)/python tests/soak.py $(if $(HOURS),--hours $(HOURS)) $(if $(ONLY),--only $(ONLY))

faults: setup    ## three brokers with whatever can go wrong, under clients that check; MINUTES=<n>, FAULT_SEED=<n> repeats
	FAULT_MINUTES=$(or $(MINUTES),10) $(BIN)/python -m pytest -s tests/histories/test_faults.py

proto: setup     ## generate the protocol stubs anew
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m grpc_tools.protoc -I platform --python_out=platform --mypy_out=platform --grpc_python_out=platform --mypy_grpc_out=platform platform/millrace/protocol/millrace.proto

clean:           ## remove the environment and caches
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis
