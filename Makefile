# `make learn` and `make test` set up a virtual environment on first use, then do the job.
# Others: `make help`. Another place or Python: make test VENV=/tmp/lolat-venv PYTHON=python3.12

VENV ?= .venv
PYTHON ?=
DEVICE ?= cpu
# What the tests need, to the byte. Where that cannot be had, `make test LOCK=` takes what pyproject.toml admits.
LOCK ?= tests/requirements.txt
# More for the job, as in: make learn ARGS="--output cpu.json"; make test ARGS="-m 'not slow'"
ARGS ?=

BIN := $(VENV)/bin
SOURCES := lolat microbench tests benchmarks examples learn_model.py hatch_build.py
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input

# Where no PYTHON is given, the first of these that runs and is of the right version. A pyenv shim
# is there for every version that is installed but runs only for the active one, so each is tried.
CANDIDATES = $(if $(PYTHON),"$(PYTHON)",python3.11 python3.12 python3.13 python3 python \
	"$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/3.11.*/bin/python \
	"$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/3.12.*/bin/python \
	"$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/3.13.*/bin/python)
FITS = import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, $(NEWER)))
NEWER = 14
check package: NEWER = 99 # TensorFlow has no wheels for newer ones

TRIED = $(or $(PYTHON),python3.11 python3.12 python3.13 python3 python and those of pyenv)

.PHONY: help learn check test coverage lint format docs pages package lock oldest clean venv
.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:

help:
	@echo "make learn   measure this device (DEVICE=cpu) and write a model to models/local/"
	@echo "make check   ruff, mypy and the tests that need no framework: one to three minutes"
	@echo "make test    ruff, mypy, then all tests in two processes"
	@echo "make coverage  all tests, and which branches of the packages they take"
	@echo "make lint    ruff and mypy only"
	@echo "make format  put the sources into ruff's format"
	@echo "make pages   write the pages that are made from the code and the results"
	@echo "make docs    build the documentation into site/; a link that leads nowhere fails"
	@echo "make package build the wheel and the source archive into dist/, and check them"
	@echo "make lock    pin the newest packages that pyproject.toml admits in tests/requirements.txt"
	@echo "make oldest  test with the oldest packages that pyproject.toml admits"
	@echo "make clean   remove the virtual environment, caches and builds; models stay"

learn: $(VENV)/.lolat-learn
	@$(BIN)/python learn_model.py $(DEVICE) $(ARGS)

# Else each of the hundreds of processes compiles the packages again, and pytest all tests.
check test coverage: export PYTHONDONTWRITEBYTECODE =
# Matrices are small: threads of both processes would wait for each other, up to 25 times as long.
check test coverage: export OPENBLAS_NUM_THREADS = 1
check test coverage: export OMP_NUM_THREADS = 1

test: lint
	@$(BIN)/python -m pytest -n 2 --dist worksteal $(ARGS)

# Of all processes that the tests start, but for those that they kill. Where a test fails, the table is shown all the same.
coverage: $(VENV)/.lolat-test
	@$(BIN)/python -m coverage erase
	@$(BIN)/python -m coverage run -m pytest -n 2 --dist worksteal $(ARGS); code=$$?; \
		$(BIN)/python -m coverage combine --quiet && $(BIN)/python -m coverage report --skip-covered && exit $$code

lint: $(VENV)/.lolat-test
	@$(call LINT,$(BIN))

# $(1): the scripts of an environment. $(2): options of mypy.
LINT = $(1)/python -m ruff check $(wildcard $(SOURCES)) && \
	{ $(1)/python -m ruff format --check $(wildcard $(SOURCES)) || \
		{ echo "not in ruff's format: run make format" >&2; exit 1; }; } && \
	$(1)/python -m mypy $(2)

# An environment without any framework: what needs one is skipped.
CORE := $(addprefix tests/,graph fitting io device hardware tables report llm test_errors.py test_units.py)
check: export LOLAT_NEEDS = no-framework
check: $(VENV)-check/.lolat-check
	@$(call LINT,$(VENV)-check/bin,--ignore-missing-imports)
	@$(VENV)-check/bin/python -m pytest -n 2 --dist worksteal -q -m 'not slow' $(or $(ARGS),$(CORE))

format: $(VENV)/.lolat-test
	@$(BIN)/python -m ruff check --fix $(wildcard $(SOURCES))
	@$(BIN)/python -m ruff format $(wildcard $(SOURCES))

docs: $(VENV)/.lolat-test
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict --site-dir site
	@echo "site/index.html"

pages: $(VENV)/.lolat-test
	@$(BIN)/python -m benchmarks.pages

package: venv
	@$(PIP) install --quiet build twine check-wheel-contents
	@rm -f dist/*.whl dist/*.tar.gz
	@$(BIN)/python -m build --outdir dist >/dev/null
	@$(BIN)/python -m twine check --strict dist/*.whl dist/*.tar.gz
	@$(BIN)/check-wheel-contents dist/*.whl

# A week old at least: what was put there by a thief is mostly found by then. PyTorch's wheel for the CPU
# and the one with CUDA have one version and two hashes, and torchvision fits the latter only.
lock: venv
	@$(PIP) install --quiet 'uv>=0.9'
	@$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --exclude-newer '7 days' \
		--generate-hashes --no-annotate --custom-compile-command 'make lock' --extra test --extra timm \
		--no-emit-package torch --no-emit-package torchvision --output-file tests/requirements.txt pyproject.toml

# Direct requirements only: what these ask for in turn is their own matter. PyTorch is that of the other tests.
oldest: venv
	@$(PIP) install --quiet 'uv>=0.9'
	@$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(VENV)-oldest
	@$(BIN)/uv pip compile --quiet --resolution lowest-direct --extra test pyproject.toml | grep -v '^torch==' \
		>$(VENV)-oldest/requirements.txt
	@$(BIN)/uv pip install --quiet --python $(VENV)-oldest --no-deps --requirement $(VENV)-oldest/requirements.txt
	@$(BIN)/python -m pip --python $(VENV)-oldest install --quiet --editable '.[test]' 'httpx<1' # which Starlette's client was before httpx2
	@$(VENV)-oldest/bin/python -m pytest -m 'not slow' $(or $(ARGS),tests/graph tests/fitting tests/io tests/device tests/readers)

# A half-made environment, or one whose Python is gone, is made again: its stamps say nothing.
ifneq ($(shell "$(BIN)/python" -c "import pip" 2>/dev/null && echo runs),runs)
$(shell rm -f "$(VENV)/.lolat-learn" "$(VENV)/.lolat-test")
endif

# The stamps say what is installed. What the tests need holds all that learning needs.
$(VENV)/.lolat-learn: pyproject.toml | venv
	@echo "installing LoLat and TensorFlow into $(VENV) (once; some minutes on a slow line)" >&2
	@$(PIP) install --quiet --editable '.[tensorflow]'
	@touch $@

# By uv, which takes a tenth of pip's time, if it finds all packages; pip alone knows pip's own settings.
LOCKED = --quiet --no-deps --require-hashes --requirement $(LOCK)
FAST = sed -n '/^uv==/,/[^\\]$$/p' $(LOCK) >$(VENV)/uv.txt && \
	$(PIP) install --quiet --no-deps --require-hashes --requirement $(VENV)/uv.txt && \
	$(BIN)/uv pip install --python $(BIN)/python $(LOCKED) 2>/dev/null

$(VENV)/.lolat-test: pyproject.toml $(LOCK) | venv
	@echo "installing LoLat, TensorFlow and the test tools into $(VENV) (once; some minutes on a slow line)" >&2
	@$(if $(LOCK),{ $(FAST) || $(PIP) install --no-compile $(LOCKED); } || \
		{ echo "$(LOCK) cannot be installed here; without it: make $(or $(MAKECMDGOALS),test) LOCK=" >&2; exit 1; })
	@$(PIP) install --quiet --no-compile $(if $(LOCK),--no-build-isolation --no-warn-conflicts) --editable '.[test]'
	@$(PIP) install --quiet --no-compile --no-deps 'timm>=1' 'torchvision==0.28.0' # of another build than PyTorch's for the CPU
	@touch $(VENV)/.lolat-learn $@

$(VENV)-check/.lolat-check: pyproject.toml
	@$(MAKE) --no-print-directory venv VENV=$(VENV)-check NEWER=99
	@$(VENV)-check/bin/python -m pip --disable-pip-version-check install --quiet --editable '.[check]'
	@touch $@

# Never --clear on a folder that is no virtual environment: VENV may name anything.
venv:
	@"$(BIN)/python" -c "import pip" 2>/dev/null && exit; \
	for python in $(CANDIDATES); do \
		if "$$python" -c '$(FITS)' >/dev/null 2>&1; then \
			echo "making $(VENV) with $$("$$python" --version)" >&2; \
			if [ -e "$(VENV)/pyvenv.cfg" ]; then clear=--clear; else clear=; fi; \
			"$$python" -m venv $$clear "$(VENV)" && touch "$(VENV)/.lolat-made"; \
			exit; \
		fi; \
	done; \
	echo "no fitting Python: tried $(TRIED); expected Python 3.11 to 3.13 with venv and pip" \
		"(Debian, Ubuntu: apt install python3-venv): install one, or name one:" \
		"make $(MAKECMDGOALS) PYTHON=/path/to/python" >&2; \
	exit 1

# Only what make has made: an environment without the mark is somebody else's.
clean:
	@if [ -e "$(VENV)/.lolat-made" ]; then rm -rf "$(VENV)" "$(VENV)-check" "$(VENV)-oldest"; fi
	@rm -rf build dist site *.egg-info .coverage* .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find $(wildcard $(SOURCES)) -name __pycache__ -type d -prune -exec rm -rf {} +
