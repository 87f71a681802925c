# `make demo` and `make test` do all set-up on a fresh machine with Python 3.11 or newer.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo check test coverage sanitize docs tables lint clean kills fuzz matrix extras release-check

# Corpora that lie beside the checkout; the library itself looks only where GRAPHMASK_DATA says, and in the user's cache.
ifneq ($(wildcard ../shared/data),)
export GRAPHMASK_DATA ?= $(abspath ../shared/data)
endif

demo: $(VENV)/installed
	$(BIN)/graphmask demo

# Lint, types (36 CPU seconds at first, then few), and the tests without the marker slow (160 CPU seconds): about two
# minutes on two idle cores.
check: $(VENV)/installed-dev lint
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow"

# The browser tests use Debian's chromium if it is there or can be installed; otherwise pytest says they were skipped.
test: $(VENV)/installed-dev lint
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	  && apt-get update -qq >/dev/null && apt-get install -y -qq chromium >/dev/null; } \
	  || echo "make test: no chromium here, the browser tests WILL BE SKIPPED"
	$(BIN)/python -m pytest -n 2 --dist worksteal --cov=graphmask --cov-report=term:skip-covered

# The share of lines that all tests run. `make test` says what the quick ones run: traced tests take a third longer.
coverage: $(VENV)/installed-dev
	TRACE_SLOW_TESTS=1 $(BIN)/python -m pytest -n 2 --dist worksteal --cov=graphmask --cov-report=term:skip-covered

# The C part built with gcc's sanitizers, and its tests run so: a read or write outside an array, or undefined
# behaviour, ends the run. Leaks are not looked for: Python and PyTorch keep memory until they end.
SANITIZED := out/sanitized
RUN_SANITIZED = PYTHONPATH=$(SANITIZED) OMP_NUM_THREADS=1 ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
	  LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libubsan.so)" $(BIN)/python
sanitize: $(VENV)/installed-dev
	rm -rf $(SANITIZED)
	CC=gcc CFLAGS="-g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all" \
	  $(BIN)/python setup.py -q build --build-lib $(SANITIZED) --build-temp $(SANITIZED)/temp
	nm -D $(SANITIZED)/graphmask/ops/_fused*.so | grep -q __asan_report
	$(RUN_SANITIZED) -c "from graphmask.ops import _fused; print(_fused.__file__)"
	$(RUN_SANITIZED) -m pytest -p no:cacheprovider tests/test_fused.py tests/test_fused_arrays.py tests/test_gates.py tests/test_masking.py

# The documentation site; a warning is an error.
docs: $(VENV)/installed-dev
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs out/docs

# The tables of README and docs, from docs/figures.json; `graphmask bench all` measures what is in there.
tables: $(VENV)/installed
	$(BIN)/graphmask bench tables

# Work that is killed at 200 random moments and begun again; see docs/reliability.md.
kills: $(VENV)/installed-dev
	cd tests && ../$(BIN)/python -m faults.kills 200

# Mutated graphs and files for so many seconds, `make fuzz SECONDS=3600`, or until there were so many inputs,
# `make fuzz INPUTS=1000000`.
SECONDS ?= 600
fuzz: $(VENV)/installed-dev
	cd tests && ../$(BIN)/python -m faults.fuzz $(if $(INPUTS),inputs=$(INPUTS),$(SECONDS))

# The quick tests on other versions of Python and torch, as root on a Debian with mmdebstrap; see tools/matrix.py.
matrix:
	$(PYTHON) tools/matrix.py

# The package alone, without a compiler, and with each extra alone, each in an environment of its own.
extras:
	$(PYTHON) tools/extras.py

# What is uploaded: sdist and wheel, checked, and the wheel in an environment of its own, where it runs the demo.
release-check: $(VENV)/installed-dev
	$(BIN)/python -m pip install --quiet -c constraints.txt build twine
	rm -rf out/dist out/release && $(BIN)/python -m build --outdir out/dist .
	$(BIN)/python -m twine check --strict out/dist/*
	ls -l out/dist/*-cp311-abi3-*.whl
	$(PYTHON) -m venv out/release && out/release/bin/python -m pip install --quiet -c constraints.txt out/dist/*.whl
	cd out/release && bin/graphmask --version && bin/graphmask demo

lint: $(VENV)/installed-dev
	$(BIN)/ruff check src tests examples docs
	$(BIN)/ruff format --check src tests examples docs README.md CONTRIBUTING.md CHANGELOG.md
	$(BIN)/mypy

$(VENV)/pip:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt --upgrade pip
	touch $@

$(VENV)/installed: $(VENV)/pip pyproject.toml setup.py src/graphmask/ops/_fused.c constraints.txt
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[all]"
	touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) out .pytest_cache .mypy_cache .ruff_cache
