# One way in for each thing one does here. `make help` lists them.

PYTHON ?= $(firstword $(shell command -v python3.11 python3.12 python3.13 python3))
BIN := .venv/bin
WORKERS ?= 2
PYTEST = $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder
# Hundreds of processes are started by tests, and each would compile all modules again.
export PYTHONDONTWRITEBYTECODE =
EXTRAS := spark,connect,cluster,schemas,plots,demo,docs,bench,dev

.PHONY: help setup demo test quick durations lint docs docs-serve dist release bench bench-compare bench-report soak mutants faults compat proto kafka-protocol clean
help:            ## show this
	@sed -n 's/^\([a-z-]*\): *\([^#]*\)## \(.*\)/  make \1\t\3/p' $(MAKEFILE_LIST) | expand -t 16

setup: .venv/ready      ## make the environment in .venv

# The package gssapi is compiled with the Kerberos libraries of the system. Without them the tests of Kerberos are skipped.
.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[$(EXTRAS)]'
	-$(if $(shell command -v krb5-config),$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[kerberos]')
	touch $@

# The demo uses a small part of the packages: Python compiles that part itself, in less time than pip compiles all.
.venv/demo: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable '.[demo]'
	touch $@

# A whole environment has what the demo needs.
demo: $(if $(wildcard .venv/ready),,.venv/demo)  ## flights and weather through the log and Spark into Delta tables, end to end
	$(BIN)/millrace demo

test: setup      ## the whole suite, from nothing, in WORKERS processes
	$(MAKE) --jobs 2 lint .venv/spark.jsa
	$(PYTEST)

# Classes of Spark that the JVMs of tests map (tests/jvm.py). Without the file they load them, and take longer.
.venv/spark.jsa: .venv/ready
	-$(BIN)/python -m tests.jvm $@

quick: setup     ## pure logic and oracles in less than four minutes, without brokers and Spark
	$(PYTEST) tests/unit tests/conformance tests/fuzz tests/simulation -m "not broker and not spark and not slow" --hypothesis-profile quick

durations: setup ## the whole suite; records the duration of each file, by which `make test` distributes the files
	$(PYTEST) --record-durations

lint: setup      ## style, types and import contracts
	$(BIN)/ruff check --no-cache .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: setup     ## millrace and its peers in turn; ONLY=<name> runs one benchmark
	$(BIN)/python -m benchmarks $(if $(ONLY),--only $(ONLY))

bench-compare: setup     ## rows that fell since a commit; OLD=<commit>, ONLY="<row> <row>"
	$(BIN)/python -m benchmarks.compare --old $(or $(OLD),$(error say OLD=<commit>)) $(foreach row,$(ONLY),--only $(row))

bench-report: setup      ## write RESULTS.md of the benchmarks from the existing results
	$(BIN)/python -m benchmarks.report
	$(BIN)/python -m benchmarks.compare.report

sim: setup       ## whole clusters in one process, each from a seed; SEEDS=<n>, FIRST=<seed>, SEED=<one>, PLANTED=1
	$(BIN)/python -m tests.simulation.cluster $(if $(SEEDS),--seeds $(SEEDS) --keep-going) $(if $(FIRST),--first $(FIRST)) $(if $(SEED),--seed $(SEED)) $(if $(PLANTED),--planted) $(if $(PLANT),--plant "$(PLANT)")

soak: setup      ## the tests that kill and search at random, for hours; HOURS=<n>, ONLY=<suites>; continues on the same commit, RESTART=1 starts again; writes docs/soak.md
	$(BIN)/python tests/soak.py $(if $(HOURS),--hours $(HOURS)) $(if $(ONLY),--only $(ONLY)) $(if $(RESTART),--restart)

mutants: setup   ## mutation testing; SEED=<n> continues or repeats, COUNT=<n>, ONLY=<area>, TESTS=<paths>, FRESH=1; writes docs/mutants.md
	$(BIN)/python -m tests.mutation $(if $(SEED),--seed $(SEED)) $(if $(COUNT),--count $(COUNT)) $(if $(ONLY),--only $(ONLY)) $(if $(TESTS),--tests $(TESTS)) $(if $(FRESH),--fresh)

faults: setup    ## three brokers with faults of processes, networks and disks, under clients that check; MINUTES=<n>, FAULT_SEED=<n> repeats
	FAULT_MINUTES=$(or $(MINUTES),10) $(BIN)/python -m pytest -s tests/histories/test_faults.py

compat: setup    ## other makers' tests and clients against millrace and Kafka, as root for Debian's packages; ONLY=<suite>, AGAINST=millrace, TESTS=<expression>; writes docs/kafka-suites.md
	$(BIN)/python -m tests.compat $(if $(ONLY),--only $(ONLY)) $(if $(AGAINST),--against $(AGAINST)) $(if $(TESTS),--tests "$(TESTS)")

docs: setup      ## the documentation as a site in build/site; the reference pages are generated first
	$(BIN)/python docs/generate_reference.py
	$(BIN)/mkdocs build --strict

docs-serve: setup  ## the same, served on loopback and rebuilt while you write
	$(BIN)/mkdocs serve

dist: setup      ## wheel and sdist in dist/, the wheel built from the sdist
	rm -rf dist
	$(BIN)/python -m build --outdir dist .

release: dist    ## keep the release in dist/, and data that it wrote, in tests/releases for the tests of upgrades
	git diff --quiet HEAD || { echo "commit or remove the changes first"; exit 1; }
	$(BIN)/python tests/releases/keep.py dist/*.tar.gz

proto: setup     ## generate the protocol stubs
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m grpc_tools.protoc -I platform --python_out=platform --mypy_out=platform --grpc_python_out=platform --mypy_grpc_out=platform platform/millrace/protocol/millrace.proto

kafka-protocol: setup  ## generate the classes of Kafka's messages from the jars of the peers' Kafka (needs Maven)
	$(BIN)/python -m millrace.kafka_protocol.generator --jars "$$($(BIN)/python -m benchmarks.peers.jars kafka | tail -n 1)"

clean:           ## remove the environment and caches
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache
