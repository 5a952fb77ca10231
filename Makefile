# Short names for what people do here. The build itself is CMake's.
BUILD ?= build
JOBS ?= $(shell nproc)
PYTHON := .venv/bin/python
CMAKE_FLAGS ?=
SECONDS ?= 60
SOURCES := $(shell git ls-files -co --exclude-standard '*.cpp' '*.h' '*.cu' '*.cuh' 2>/dev/null)

.PHONY: all setup quickstart test lint fuzz format clean

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

fuzz:  ## fuzz the readers of untrusted files, SECONDS=60 each
	scripts/fuzz.sh $(SECONDS)

lint:  ## clang-format on everything, clang-tidy on what the build compiles, without changing anything
	clang-format --dry-run --Werror $(SOURCES)
	cmake -S . -B $(BUILD) $(CMAKE_FLAGS)
	printf '%s\n' $(filter-out dev/% test/fuzz/%,$(filter %.cpp,$(SOURCES))) | xargs -P $(JOBS) -n 4 clang-tidy --quiet -p $(BUILD) --extra-arg=-Wno-unknown-warning-option

format:  ## clang-format everything in place
	clang-format -i $(SOURCES)

clean:
	rm -rf $(BUILD) train_gpt_goat
