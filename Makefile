# The ways in. Each target can be run in a fresh clone; `make help` lists them.
PRESET ?= release
BUILD_FOLDER = build/$(if $(filter ci,$(PRESET)),release,$(PRESET))
.PHONY: help quickstart setup build test test-long test-sanitized test-thread-sanitized test-cuda soak format-check api-docs docs-check real-model peers trackers clean

help:            ## print this list
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

soak: build      ## test the engine on a fake device with streams, 40 scenarios with 1,000 seeds each; run again, it continues
	scripts/soak

trackers: build  ## track a run with TensorBoard, W&B and MLflow, and read it back with their own readers
	scripts/trackers

test-sanitized: setup  ## test libsherd, ops/ and launch/ under the address and undefined-behaviour sanitizers
	cmake --preset asan
	cmake --build --preset asan
	ctest --preset asan -L 'unit|ranks'

test-thread-sanitized: setup  ## test the parts without LibTorch (launch/, files/, llm/config, llm/text, llm/inputs, llm/track) under the thread sanitizer
	cmake --preset tsan
	cmake --build --preset tsan
	ctest --preset tsan

# The programs for GPUs link libsherd and ops/ of the CPU build, which are the same, if that build is there. Then the configuration that
# compiles everything for CUDA is checked as well.
BUILT = $(patsubst %/built_libraries.cmake,%,$(wildcard $(BUILD_FOLDER)/built_libraries.cmake))
CONFIGURE_CUDA = cmake --preset cuda -DSHERD_WERROR=ON "-DCMAKE_CUDA_ARCHITECTURES=80-real;90"
test-cuda:       ## compile libsherd, ops/ and the kernels for CUDA, and run the GPU tests where there is a GPU
	@scripts/setup --tests --cuda
	$(if $(BUILT),cmake --build $(BUILT) --target sherd_ops)
	$(if $(BUILT),$(CONFIGURE_CUDA) -B build/cuda-whole)
	$(CONFIGURE_CUDA) -DSHERD_BUILD_LLM=OFF -DSHERD_BUILD_OPS=ON -DSHERD_BUILT=$(BUILT)
	cmake --build --preset cuda --target sherd_cuda sherd_ops_cuda sherd_gpu_tests
	ctest --preset cuda -L gpu

format-check:    ## check formatting, layers and words; changes nothing
	git ls-files '*.h' '*.cpp' '*.cu' '*.cuh' | xargs clang-format-14 --dry-run --Werror
	python3 scripts/check_includes.py
	python3 scripts/check_words.py

api-docs:        ## build the API reference from the docstrings of include/sherd, in build/api/html
	mkdir -p build && doxygen docs/Doxyfile
	@echo "build/api/html/index.html"

docs-check: api-docs  ## check that every public symbol has a docstring

real-model:      ## fine-tune SmolLM2-135M on 250 questions with two processes, with scores before and after (downloads 93 MB)
	@scripts/real_model_run

peers:           ## load an export in transformers and compare (a Python environment of its own)
	@scripts/peers

clean:           ## remove builds, keep .deps/
	rm -rf build
