# Short names for what people do here. The build itself is CMake's.
BUILD ?= build
JOBS ?= $(shell nproc)
PYTHON := .venv/bin/python
CMAKE_FLAGS ?=
SECONDS ?= 60
ARCHITECTURES ?= 80;86;89;90a;120
SOURCES := $(shell git ls-files -co --exclude-standard '*.cpp' '*.h' '*.cu' '*.cuh' 2>/dev/null)

.PHONY: all setup quickstart test test-asan test-race mutate cuda lint fuzz format clean

all: $(BUILD)/CMakeCache.txt  ## build ./train_gpt_goat
	cmake --build $(BUILD) --parallel $(JOBS) --target train_gpt_goat

$(BUILD)/CMakeCache.txt: CMakeLists.txt
	cmake -S . -B $(BUILD) $(CMAKE_FLAGS)

setup:  ## install what a bare machine lacks
	scripts/setup.sh

quickstart: setup  ## build, train the built-in task, draw what the prior learned
	$(MAKE) all
	./train_gpt_goat --config copy_mixture --out runs/quickstart --overwrite
	$(PYTHON) scripts/plot.py prior runs/quickstart

test: setup  ## build and run every test
	cmake -S . -B $(BUILD) $(CMAKE_FLAGS)
	cmake --build $(BUILD) --parallel $(JOBS)
	ctest --test-dir $(BUILD) --output-on-failure --parallel $(JOBS)

test-asan: setup  ## the kernel tests under AddressSanitizer and UBSan, on reduced sizes
	cmake -S . -B build-asan -DGOAT_SANITIZE=address -DGOAT_CUDA=OFF
	cmake --build build-asan --parallel $(JOBS) --target kernel_tests
	GOAT_TEST_REDUCED=1 ctest --test-dir build-asan --output-on-failure --parallel $(JOBS) -L kernel_tests

test-race: setup  ## the kernel tests on the simulated GPU with its race checker, on reduced sizes
	cmake -S . -B build-race -DGOAT_SANITIZE=race -DGOAT_CUDA=OFF
	cmake --build build-race --parallel $(JOBS) --target kernel_tests
	GOAT_TEST_REDUCED=1 GOAT_TEST_DEVICES=simt ctest --test-dir build-race --output-on-failure --parallel $(JOBS) -L kernel_tests

mutate: setup  ## plant small faults in the kernels and see that the tests notice (dev/mutations.toml)
	$(PYTHON) dev/mutate.py --record dev/results/mutations.md

cuda:  ## compile every kernel with nvcc, for ARCHITECTURES="80;86;89;90a;120", and check what came out
	cmake -S . -B build-cuda -DGOAT_CUDA=ON -DGOAT_SIMT=OFF -DGOAT_TESTS=OFF -DGOAT_WERROR=ON "-DGOAT_CUDA_ARCHITECTURES=$(ARCHITECTURES)"
	cmake --build build-cuda --parallel $(JOBS) --target goat_cuda
	GOAT_BUILD=build-cuda $(PYTHON) -m pytest -q test/test_cuda_build.py test/test_cuda_sass.py

fuzz:  ## fuzz the readers of untrusted files, SECONDS=60 each
	scripts/fuzz.sh $(SECONDS)

lint:  ## clang-format on everything, clang-tidy on what the build compiles, without changing anything
	clang-format --dry-run --Werror $(SOURCES)
	cmake -S . -B $(BUILD) $(CMAKE_FLAGS)
	mkdir -p $(BUILD)/tidy  # clang knows not every option that GCC is given
	sed -E 's/ -fno-(crossjumping|tree-tail-merge)//g' $(BUILD)/compile_commands.json > $(BUILD)/tidy/compile_commands.json
	printf '%s\n' $(filter-out dev/% test/fuzz/%,$(filter %.cpp,$(SOURCES))) | xargs -P $(JOBS) -n 2 clang-tidy --quiet -p $(BUILD)/tidy --extra-arg=-Wno-unknown-warning-option

format:  ## clang-format everything in place
	clang-format -i $(SOURCES)

clean:
	rm -rf $(BUILD) build-asan build-race build-cuda train_gpt_goat
