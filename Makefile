# make demo      install into .venv, run sweeps/quickstart.yaml through Ray Tune, print the best cells
# make test      install into .venv, run the fast tests, meant to answer in five minutes on two cores
# make test-all  all tests, those that kill processes of a Ray at work last
# make fuzz      forged messages, data files and sweep files, for some minutes (MESSAGES=, FILES=, RESULTS=)
# make chaos     install into .venv, kill processes of running sweeps at random, compare the results
# make mutants   put faults into the package that tests must notice, where their files have changed (JOBS=)
# make lint      formatter, linter, type checker; the lines of each room
# make docs      build the documentation site into build/site, and check all its links
# make dist      build sdist and wheel into dist/
# make clean     remove .venv and everything that was built; results/ stays

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed
# One more than cores: tests that run Ray wait for its processes, and three workers fill two cores, as measured.
WORKERS ?= 3
PYTEST ?=

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help install demo test test-all most slow hosts rented chaos processors mutants fuzz docs dist lint check format types lines clean

help:
	@sed -n 's/^# //p' $(firstword $(MAKEFILE_LIST)) | head -10

# Installed anew only when what is to be installed changes.
$(STAMP): pyproject.toml constraints.txt setup.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "error: raybench needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) -V 2>&1)." \
	       "Try: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

install: $(STAMP)

demo: $(STAMP)
	$(BIN)/raybench sweep sweeps/quickstart.yaml

# Each file stays on one worker, so that what its tests share is made once. Files that start Ray run first
# (tests/conftest.py), because they take longest.
PARALLEL := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

test: $(STAMP)
	$(PARALLEL) -m "not thorough" $(PYTEST)

test-all: most slow

most: $(STAMP)
	$(PARALLEL) -m "not slow" $(PYTEST)

# What is slow kills processes or needs the packages of frameworks. What the job client of `raybench launch` needs makes
# every start of Ray slower: it is installed for these, after the others, and so are the frameworks that train.
$(VENV)/cluster: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,cluster,train]'
	@touch $@

slow: $(VENV)/cluster
	$(PARALLEL) -m slow $(PYTEST)

# Launches onto two hosts, network namespaces of this machine: some twenty minutes. As root.
hosts: $(VENV)/cluster
	$(BIN)/python -m pytest -m slow tests/test_launch_hosts.py $(PYTEST)
	.ci/stamp write hosts

# Launches onto a cloud that this machine plays: some fifteen minutes. As root.
rented: $(VENV)/cluster
	$(BIN)/python -m pytest -m slow tests/test_launch_rented.py $(PYTEST)
	.ci/stamp write rented

# Kills at random, seeded: ten take about six minutes on two cores. docs/faults.md
KILLS ?= 10
chaos: $(STAMP)
	$(BIN)/python benchmarks/chaos.py --kills $(KILLS) --seed 0
	.ci/stamp write chaos

JOBS ?= 2
mutants: $(STAMP)
	$(BIN)/python benchmarks/mutants.py --changed --all --jobs $(JOBS)

# The exact statements and the references: results must not hang on the instruction set or the number of threads.
INVARIANTS := $(addprefix tests/test_,invariants.py references.py references_practice.py \
              streams.py kernels.py selection.py quantisers.py theory.py)
# On x86 alone; with AVX2 fewer cases, and all of what is rounded.
SSE := ATEN_CPU_CAPABILITY=default NUMBA_CPU_NAME=generic MKL_CBWR=COMPATIBLE ONEDNN_MAX_CPU_ISA=SSE41
AVX2 := ATEN_CPU_CAPABILITY=avx2 NUMBA_CPU_NAME=haswell MKL_CBWR=AVX2 ONEDNN_MAX_CPU_ISA=AVX2
processors: $(STAMP)
	RAYBENCH_TEST_THREADS=1 $(SSE) $(PARALLEL) -m "not slow" $(INVARIANTS) $(PYTEST)
	RAYBENCH_TEST_THREADS=2 $(AVX2) $(PARALLEL) -m "not thorough" $(INVARIANTS) $(PYTEST)
	RAYBENCH_TEST_THREADS=2 $(AVX2) $(PARALLEL) -m "not slow" tests/test_quantisers.py $(PYTEST)
	.ci/stamp write processors

# make test-all tries a small sample of these; a hundred thousand messages: make fuzz MESSAGES=100000
MESSAGES ?= 10000
FILES ?= 10000
RESULTS ?= 1000
SEED ?= 0
fuzz: $(STAMP)
	$(BIN)/python benchmarks/forge.py --messages $(MESSAGES) --files $(FILES) --results $(RESULTS) --seed $(SEED)

# No page may be missing from the navigation, no link may lead nowhere. Read it from disk: build/site/index.html
docs: $(STAMP)
	$(BIN)/mkdocs build --strict --quiet

# By setuptools alone, which is installed: nothing is downloaded.
dist: $(STAMP)
	rm -rf dist
	$(BIN)/python -c "from setuptools import build_meta as b; b.build_sdist('dist'); b.build_wheel('dist')"

lint: check format types lines

check: $(STAMP)
	$(BIN)/ruff check .

format: $(STAMP)
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

lines: $(STAMP)
	$(BIN)/python .ci/lines

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find raybench tests examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
