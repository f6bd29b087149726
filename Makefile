# The commands of this repository. `make demo` and `make test` need Python >= 3.11, make and a
# package index; everything else they install into $(VENV), from the lock files.

VENV ?= .venv
BIN := $(VENV)/bin
# More workers than cores only wait: each test process already drives eight virtual devices.
WORKERS ?= $(shell n=$$(nproc 2>/dev/null || echo 2); [ $$n -gt 4 ] && echo 4 || echo $$n)
PYTEST_ARGS ?=
# What pip is asked for by `make test-bridges`. torchvision is for timm, whose import needs it. It is
# in a folder of its own: beside a CPU build of PyTorch its operators do not load, and transformers
# takes any torchvision that it finds.
TORCH ?= torch==2.13.0
BRIDGES ?= transformers==5.24.0 onnxscript==0.7.2
TIMM ?= timm==1.0.31
TORCHVISION ?= torchvision==0.28.0

# The first interpreter that runs and is new enough; `make demo PYTHON=...` names another.
PYTHON ?= $(shell for python in python3.11 python3 python3.12 python3.13 python; do \
	if $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	echo $$python; break; fi; done)
PIP := $(BIN)/python -m pip install --disable-pip-version-check --no-input -qq

# An environment left by somebody else, cut off half-way, or whose interpreter is gone is made anew.
ifneq ($(shell $(BIN)/python -c pass 2>/dev/null && echo works),works)
$(shell rm -f $(VENV)/.created $(VENV)/.runtime $(VENV)/.dev $(VENV)/.bridges)
endif

.PHONY: demo test test-bridges test-newest lint docs wheel python lock clean
.DELETE_ON_ERROR:

demo: $(VENV)/.runtime
	$(BIN)/python examples/demo.py

test: $(VENV)/.dev
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(PYTEST_ARGS)

# The same tests beside the frameworks that they compare with; without them those tests skip.
test-bridges: $(VENV)/.bridges
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(PYTEST_ARGS)

# The tests marked "newest" with the newest jax, flax, optax and libtpu, whatever pyproject.toml
# allows, in an environment of its own. Prints the versions, then what broke.
test-newest:
	@$(MAKE) --no-print-directory .venv-newest/.dev VENV=.venv-newest
	.venv-newest/bin/python -m pip install --disable-pip-version-check --no-input -qq --upgrade \
		--upgrade-strategy eager "jax[tpu]" flax optax
	@.venv-newest/bin/python -m pip list --disable-pip-version-check | \
		grep -iE "^(jax|jaxlib|flax|optax|libtpu) "
	.venv-newest/bin/python -m pytest -n $(WORKERS) --dist worksteal -m newest --tb=short \
		$(PYTEST_ARGS)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

docs: $(VENV)/.dev
	$(BIN)/python docs/build.py out/docs

wheel: $(VENV)/.dev
	$(BIN)/python -m build --wheel --no-isolation --outdir dist

# Which interpreter the environments are made with.
python:
	@echo $(PYTHON)

$(VENV)/.created:
	@if [ -z "$(PYTHON)" ]; then \
		echo "Neurenix needs Python 3.11 or newer, and found none on the PATH." >&2; \
		echo "Install one, or name it: make $(MAKECMDGOALS) PYTHON=/path/to/python3.11" >&2; exit 1; fi
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "Neurenix needs Python 3.11 or newer; $(PYTHON) is not." >&2; exit 1; }
	@$(PYTHON) -m venv --clear $(VENV) || { \
		echo "$(PYTHON) cannot make virtual environments; on Debian and Ubuntu install python3-venv." >&2; exit 1; }
	@touch $@

$(VENV)/.runtime: requirements.lock pyproject.toml | $(VENV)/.created
	@echo "Installing Neurenix and what it needs into $(VENV) (1.5 GB on disk, half of it the TPU compiler) ..."
	$(PIP) --require-hashes -r requirements.lock
	$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.dev: requirements-dev.lock $(VENV)/.runtime
	@echo "Installing the tools for tests and checks into $(VENV) ..."
	$(PIP) --require-hashes -r requirements-dev.lock
	@touch $@

# Not of the lock file: which build of PyTorch is right depends on the machine.
$(VENV)/.bridges: $(VENV)/.dev
	@echo "Installing PyTorch, transformers and timm into $(VENV) ..."
	$(PIP) $(TORCH) $(BRIDGES)
	$(PIP) --no-deps $(TIMM)
	$(PIP) --no-deps --upgrade --target $(VENV)/torchvision $(TORCHVISION) pillow
	@touch $@

# Needs uv. The locks hold for every Python from 3.11 on, and name no index. `editables` and
# `hatchling` build Neurenix itself.
LOCK := uv pip compile --universal --python-version 3.11 --fork-strategy requires-python \
	--generate-hashes --no-emit-index-url --no-annotate --custom-compile-command "make lock" $(LOCK_ARGS)
lock:
	printf 'editables\nhatchling\n' | $(LOCK) pyproject.toml - --output-file requirements.lock
	printf 'editables\nhatchling\n' | $(LOCK) pyproject.toml - --extra dev --extra docs \
		--constraints requirements.lock --output-file requirements-dev.lock

clean:
	rm -rf $(VENV) .venv-newest dist out
