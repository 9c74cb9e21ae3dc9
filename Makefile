# The two commands: make quickstart, make test.  make help lists the rest.
PYTHON ?= python3
DEVICE ?= auto
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed-$(DEVICE)
TRITON := .triton/.installed
NBVAL  := --nbval --nbval-current-env --nbval-cell-timeout=420

# Notebooks' kernels are found by name, and must be those of .venv.
export PATH := $(CURDIR)/$(BIN):$(PATH)
# Importing the stack takes 5 s with bytecode and 20 s without; some images switch it off.
export PYTHONDONTWRITEBYTECODE :=
# Two OpenMP threads on a busy two-core machine run up to five times slower than one.
export OMP_NUM_THREADS ?= 1

.DEFAULT_GOAL := help
.PHONY: help install quickstart test check lint types pytest notebooks gpu-path scale long compat docs gpu-check lock clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'
	@echo "  DEVICE=cpu or DEVICE=cuda overrides what nvidia-smi says; PYTHON=... chooses the interpreter"

install: $(STAMP)  ## make .venv with the pinned stack (CUDA build where nvidia-smi answers)

$(STAMP): pyproject.toml requirements/overrides.txt requirements/constraints.txt scripts/install.py
	@$(PYTHON) scripts/install.py --venv $(VENV) --device $(DEVICE)
	@touch $@

quickstart: $(STAMP)  ## run notebooks/01_quickstart.ipynb and show what came of it
	@$(BIN)/python scripts/quickstart.py

test: lint  ## lint, type check, pytest, and nbval over every notebook
	@$(MAKE) --no-print-directory -j2 types pytest  # mypy beside workers that start

check: lint types  ## what needs no training: for the inner loop
	$(BIN)/pytest -q -n 2 --dist loadfile -m "not training"

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(STAMP)
	$(BIN)/mypy

# For tests of Unsloth's GPU path on a CPU; what users install goes without it.
$(TRITON): $(STAMP) requirements/triton.txt
	@$(BIN)/python scripts/install.py --triton $(@D)
	@touch $@

# Notebooks run beside the tests: a worker that waits for a kernel leaves its core to it.
pytest: $(STAMP) $(TRITON)
	$(BIN)/pytest -q -n 2 --dist loadfile --no-loadscope-reorder --durations=10 $(NBVAL) \
	    notebooks tests rewards rloo_kit

notebooks: $(STAMP)  ## execute every notebook in full and store its outputs; about an hour
	RLOO_KIT_FULL=1 $(BIN)/python scripts/notebooks.py

gpu-path: $(STAMP) $(TRITON)  ## the tests of Unsloth's GPU path on a CPU, with those that make test leaves out
	$(BIN)/pytest -q -n 2 --dist loadfile --durations=10 -m "" tests/gpu_path

scale: $(STAMP)  ## what runs in several processes, on CPUs; with the extra deepspeed also ZeRO
	$(BIN)/pytest -q --durations=10 -m "" tests/scale

long: $(STAMP) $(TRITON)  ## every test that make test leaves out
	$(BIN)/pytest -q --durations=10 -m long tests

# 10 to 20 GB beside uv's cache where the index has no CPU build of torch.
compat: $(STAMP)  ## the contract tests on the oldest and the newest set, and on Python 3.12 and 3.13 where they are found
	$(BIN)/python scripts/compat.py

docs: $(STAMP)  ## write the generated parts of docs/ and build the site into out/site
	$(BIN)/python scripts/docs.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# PY=python3 takes an interpreter that has the stack, and installs nothing; ARGS="--only speed" runs a part.
gpu-check: $(if $(PY),,$(STAMP))  ## check this GPU: correct, memory, speed, hygiene; 11 minutes at most, offline
	@$(or $(PY),$(BIN)/python) -m benchmarks.gpu $(ARGS)

lock: $(STAMP)  ## write the installed versions into requirements/constraints.txt
	@echo '# The versions that the tests ran on, of the ranges of pyproject.toml and all below them: make lock writes it.' \
	    > requirements/constraints.txt
	$(BIN)/python -m uv pip freeze --exclude-editable | grep -vE '^(uv|pip|setuptools)==' | sed 's/+.*//' \
	    >> requirements/constraints.txt

clean:  ## remove .venv and everything a run leaves behind
	rm -rf $(VENV) .triton .llama_cpp out .mypy_cache .ruff_cache unsloth_compiled_cache
