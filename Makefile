# Short names for what people do here. The build itself is CMake's.
BUILD ?= build
JOBS ?= $(shell nproc)
PYTHON := .venv/bin/python
CMAKE_FLAGS ?=
SECONDS ?= 60
NO_TIDY ?=
TIDY ?=
# make CUDA=ON|OFF|AUTO SIMT=ON|OFF ARCHITECTURES="80;90a". What is not given stays as the build folder has it; in a new one CUDA is AUTO (built where
# there is nvcc and a GPU answers), SIMT is OFF, ARCHITECTURES are those of the GPUs here.
CUDA :=
SIMT :=
ARCHITECTURES :=
CHOSEN = $(if $(CUDA),-DGOAT_CUDA=$(CUDA)) $(if $(SIMT),-DGOAT_SIMT=$(SIMT)) $(if $(ARCHITECTURES),"-DGOAT_CUDA_ARCHITECTURES=$(ARCHITECTURES)") $(CMAKE_FLAGS)
CONFIGURE = cmake -S . -B $(BUILD) $(CHOSEN)
# One test more than there are cores: those of several ranks mostly wait.
CTEST = ctest --test-dir $(BUILD) --output-on-failure --parallel $(shell expr $(JOBS) + 1)
SOURCES := $(shell git ls-files -co --exclude-standard '*.cpp' '*.h' '*.cu' '*.cuh' 2>/dev/null)

.PHONY: all setup quickstart tests test test-orders test-all test-asan test-race mutate cuda lint fuzz format clean

all:  ## build ./train_gpt_goat
	$(CONFIGURE)
	cmake --build $(BUILD) --parallel $(JOBS) --target train_gpt_goat

setup:  ## install what a bare machine lacks for make quickstart and make test
	scripts/setup.sh test

quickstart:  ## build, train the built-in task, draw what the prior learned
	scripts/setup.sh quickstart
	$(MAKE) all
	./train_gpt_goat --config copy_mixture --out runs/quickstart --overwrite
	$(PYTHON) scripts/plot.py prior runs/quickstart

tests: SIMT := ON
tests: setup  ## build the program with the simulated GPU, and the tests
	$(CONFIGURE)
	cmake --build $(BUILD) --parallel $(JOBS)

test: tests  ## run every test; the kernels' with one order of the simulated GPU's threads
	$(CTEST) --label-exclude schedules

test-orders: tests  ## the kernel tests with the simulated GPU's threads in other orders
	$(CTEST) --label-regex schedules

test-all: tests  ## both
	$(CTEST)

test-asan: setup  ## the kernel tests under AddressSanitizer and UBSan, on reduced sizes
	cmake -S . -B build-asan -DGOAT_SANITIZE=address -DGOAT_CUDA=OFF -DGOAT_SIMT=ON
	cmake --build build-asan --parallel $(JOBS) --target kernel_tests
	GOAT_TEST_REDUCED=1 ctest --test-dir build-asan --output-on-failure --parallel $(JOBS) -L kernel_tests

test-race: setup  ## the kernel tests on the simulated GPU with its race checker, on reduced sizes
	cmake -S . -B build-race -DGOAT_SANITIZE=race -DGOAT_CUDA=OFF -DGOAT_SIMT=ON
	cmake --build build-race --parallel $(JOBS) --target kernel_tests
	GOAT_TEST_REDUCED=1 GOAT_TEST_DEVICES=simt ctest --test-dir build-race --output-on-failure --parallel $(JOBS) -L kernel_tests

mutate: setup  ## plant small faults in kernels, train/, data/ and scripts/ and see that the tests notice (dev/mutations*.toml)
	$(PYTHON) dev/mutate.py --record dev/results/mutations.md

cuda: ALL_ARCHITECTURES = $(or $(ARCHITECTURES),80;86;89;90a;120)
cuda: setup  ## compile every kernel with nvcc, for ARCHITECTURES="80;86;89;90a;120", link the program to build-cuda, and check what came out
	cmake -S . -B build-cuda -DGOAT_CUDA=ON -DGOAT_SIMT=OFF -DGOAT_TESTS=OFF -DGOAT_WERROR=ON "-DGOAT_CUDA_ARCHITECTURES=$(ALL_ARCHITECTURES)" "-DGOAT_BINARY_DIR=$(CURDIR)/build-cuda"
	cmake --build build-cuda --parallel $(JOBS) --target goat_cuda train_gpt_goat
	GOAT_BUILD=build-cuda $(PYTHON) -m pytest -q test/test_cuda_build.py test/test_cuda_sass.py

fuzz:  ## fuzz the readers of untrusted files, SECONDS=60 each
	scripts/setup.sh lint
	scripts/fuzz.sh $(SECONDS)

lint: SIMT := ON
lint:  ## clang-format on everything, clang-tidy on what the build compiles (but NO_TIDY='test/%', with the options TIDY), without changing anything
	scripts/setup.sh lint
	clang-format --dry-run --Werror $(SOURCES)
	$(CONFIGURE)
	mkdir -p $(BUILD)/tidy  # clang knows not every option that GCC is given
	sed -E 's/ -fno-(crossjumping|tree-tail-merge|var-tracking-assignments)//g' $(BUILD)/compile_commands.json > $(BUILD)/tidy/compile_commands.json
	printf '%s\n' $(filter-out dev/% test/fuzz/% $(NO_TIDY),$(filter %.cpp,$(SOURCES))) | xargs -P $(JOBS) -n 2 clang-tidy --quiet -p $(BUILD)/tidy --extra-arg=-Wno-unknown-warning-option $(TIDY)

format:  ## clang-format everything in place
	scripts/setup.sh lint
	clang-format -i $(SOURCES)

clean:
	rm -rf $(BUILD) build-asan build-race build-cuda train_gpt_goat
