# The ways in. Each target can be run in a fresh clone; `make help` lists them.
PRESET ?= release
BUILD_FOLDER = build/$(if $(filter ci,$(PRESET)),release,$(PRESET))
.PHONY: help quickstart setup build test test-long test-sanitized test-thread-sanitized test-cuda soak format-check api-docs docs-check real-model peers trackers clean

help:            ## this list
	@sed -nE 's/^([a-z-]+): *.*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 30

quickstart:      ## install what is missing, build, fine-tune a small model on questions, evaluate, export
	@scripts/quickstart

setup:           ## install what a build and the tests need
	@scripts/setup --tests

build: setup     ## build everything (PRESET=release: in build/release)
	cmake --preset $(PRESET) -DSHERD_BUILD_TESTS=ON
	cmake --build --preset $(PRESET)

test: build      ## build and run the tests; prints at the end how many were skipped, and why, and which took longest
	ctest --preset $(PRESET); result=$$?; scripts/skipped_tests $(BUILD_FOLDER); scripts/test_times --longest 10 $(BUILD_FOLDER); exit $$result

test-long: test-thread-sanitized test-sanitized build  ## what takes too long for every change: sanitizers, each source compiled alone, and tests with the label `long`
	cmake --preset dev
	cmake --build --preset dev
	ctest --preset release-long
	ctest --preset asan-long

soak: build      ## the engine on a device with streams, 40 scenarios with 1,000 seeds each; stopped, it goes on where it was
	scripts/soak

trackers: build  ## track a run with TensorBoard, W&B and MLflow, and read it back with their own readers
	scripts/trackers

test-sanitized: setup  ## libsherd, ops/ and launch/ under the address and undefined-behaviour sanitizers
	cmake --preset asan
	cmake --build --preset asan
	ctest --preset asan -L 'unit|ranks'

test-thread-sanitized: setup  ## what is free of LibTorch (launch/, files/, llm/config, llm/text, llm/data, llm/track) under the thread sanitizer
	cmake --preset tsan
	cmake --build --preset tsan
	ctest --preset tsan

# Where there is no GPU to run them, the programs for GPUs link libsherd and ops/ of the CPU build, which are the same.
BUILT = $(shell nvidia-smi -L 2>/dev/null | grep -q '^GPU' || echo $(BUILD_FOLDER))
test-cuda:       ## compile libsherd, ops/ and the kernels for CUDA, and run the GPU tests where there is a GPU
	@scripts/setup --tests --cuda
	$(if $(BUILT),cmake --preset $(PRESET) -DSHERD_BUILD_TESTS=ON)
	$(if $(BUILT),cmake --build --preset $(PRESET) --target sherd_ops)
	cmake --preset cuda -DSHERD_BUILD_LLM=OFF -DSHERD_BUILD_OPS=ON -DSHERD_WERROR=ON "-DCMAKE_CUDA_ARCHITECTURES=80-real;90" -DSHERD_BUILT=$(BUILT)
	cmake --build --preset cuda --target sherd_cuda sherd_ops_cuda sherd_gpu_tests
	ctest --preset cuda -L gpu

format-check:    ## formatting and layers, without changing anything
	git ls-files '*.h' '*.cpp' '*.cu' '*.cuh' | xargs clang-format-14 --dry-run --Werror
	python3 scripts/check_includes.py

api-docs:        ## the API reference, from the docstrings of include/sherd, in build/api/html
	mkdir -p build && doxygen docs/Doxyfile
	@echo "build/api/html/index.html"

docs-check: api-docs  ## that every public symbol has a docstring

real-model:      ## fine-tune SmolLM2-135M on 250 questions with two processes, scores before and after (fetches 93 MB)
	@scripts/real_model_run

peers:           ## load an export in transformers and compare (a Python environment of its own)
	@scripts/peers

clean:           ## remove builds, keep .deps/
	rm -rf build
