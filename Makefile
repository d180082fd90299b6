# Everything a newcomer or CI types. `make help` lists it.
PYTHON ?= python3
HOST ?= 127.0.0.1
PORT ?= 8000

VENV := .venv
CLIENTS := .venv-clients
PIP := install --quiet --disable-pip-version-check --no-input
# One thread per torch operation and test process: the suite runs on two cores.
TEST_ENV := OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1
# The hub's client refuses every address while HF_HUB_OFFLINE is set, even the gateway's.
CLIENT_ENV := TOKENIZERS_PARALLELISM=false INTERLINGUA_GATEWAY=$(VENV)/bin/gateway

.PHONY: help serve test check format bench bench-engine clean
help:  ## show this
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

serve: $(VENV)/.installed  ## serve the bundled model on HOST:PORT
	$(VENV)/bin/gateway serve --host $(HOST) --port $(PORT)

check: $(VENV)/.checked  ## format, lint, types, import contracts, and all tests that need no torch
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	$(TEST_ENV) $(VENV)/bin/pytest -q -n 2 -m "not torch and not slow" --ignore tests/clients

test: check $(CLIENTS)/.installed  ## the whole suite
	$(TEST_ENV) $(VENV)/bin/pytest -q -n 2 --dist loadfile -m "torch or slow" --ignore tests/clients
	$(CLIENT_ENV) $(VENV)/bin/pytest -q tests/clients/test_huggingface_hub.py tests/clients/test_openai.py
	$(CLIENT_ENV) $(CLIENTS)/bin/python -m pytest -q -c tests/clients/pytest.ini tests/clients

format: $(VENV)/.checked  ## rewrite the code in the project's format
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

bench: $(VENV)/.installed  ## what the gateway itself costs, in CPU time per request
	$(VENV)/bin/python -m benchmarks.gateway
	$(VENV)/bin/python -m benchmarks.remote
	$(VENV)/bin/python -m benchmarks.routing
	$(VENV)/bin/python -m benchmarks.grammar

bench-engine: $(VENV)/.installed  ## the native engine beside transformers' own, at random weights of a 0.5B shape (20 minutes)
	$(VENV)/bin/python -m benchmarks.engine

clean:  ## remove what make built
	rm -rf $(VENV) $(CLIENTS) *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11 ...")'
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing into $(VENV) (once; torch and transformers take a minute or two) ..."
	$(VENV)/bin/pip $(PIP) --constraint constraints.txt --editable .
	touch $@

$(VENV)/.checked: $(VENV)/.installed
	$(VENV)/bin/pip $(PIP) --constraint constraints.txt --editable '.[check]'
	touch $@

# The client libraries want older versions of what transformers brings, so they live apart.
$(CLIENTS)/.installed: tests/clients/requirements.txt
	test -x $(CLIENTS)/bin/python || $(PYTHON) -m venv $(CLIENTS)
	$(CLIENTS)/bin/pip $(PIP) --requirement tests/clients/requirements.txt
	touch $@
