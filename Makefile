# SPDX-License-Identifier: MIT
# What a person types. CMake does the work; CMakePresets.json names the builds.

PREFIX ?= /usr/local
JOBS ?= $(shell nproc)
FUZZ_SECONDS ?= 60
configure = cmake --preset $(1) $(if $(WERROR),-DLOAM_WERROR=ON) $(2) >$(log) || { cat $(log); exit 1; }
log = build/configure.log
compile = cmake --build --preset $(1) --parallel $(JOBS)
sources = $(shell git ls-files '*.c' '*.h' '*.inc' '*.cu' '*.cuh')

.DEFAULT_GOAL := help
.PHONY: help deps build demo test bench bench-scaling bench-profile bench-tables install format lint clang sanitize tsan coverage fuzz clean

help: ## say what there is to type
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' Makefile

deps:
	@tools/install-deps.sh build

build: deps ## build the program, build/loam, and the libraries
	@mkdir -p build
	@$(call configure,release)
	@$(call compile,release)

demo: ## build, run the demo and leave its pictures in out/
	@tools/install-deps.sh demo
	@$(MAKE) --no-print-directory build
	@tools/demo.sh

test: ## build and run all tests
	@tools/install-deps.sh test
	@$(MAKE) --no-print-directory build
	@ctest --preset release

bench: build ## measure the default shapes and write the tables of docs/performance.md
	@mkdir -p bench/results
	@build/loam bench --format csv --out bench/results/default.csv
	@build/bench/loam-parts bench/results/parts.csv
	@$(MAKE) --no-print-directory bench-tables

bench-scaling: build ## measure lengths, dimensions, heads and threads, likewise
	@build/loam bench bench/shapes/scaling.txt --seconds 0.2 --threads 1 --no-error --format csv --out bench/results/scaling-1.csv
	@build/loam bench bench/shapes/scaling.txt --seconds 0.2 --format csv --out bench/results/scaling.csv
	@$(MAKE) --no-print-directory bench-tables

bench-profile: deps ## sample where the time of a kernel goes (needs perf), likewise
	@mkdir -p build
	@cmake --preset release -B build/profile -DCMAKE_C_FLAGS=-g -DLOAM_TESTS=OFF -DLOAM_CUDA=OFF >build/profile.log || { cat build/profile.log; exit 1; }
	@cmake --build build/profile --target loam_program --parallel $(JOBS)
	@bench/profile.py --out bench/results/profile.csv
	@$(MAKE) --no-print-directory bench-tables

bench-tables:
	@bench/tables.sh docs/performance.md bench/results/*.csv
	@bench/tables.sh docs/notes/cpu.md bench/results/*.csv

install: build ## install under PREFIX=/usr/local (and DESTDIR)
	@cmake --install build --prefix $(PREFIX)

format: ## give all sources the look of .clang-format
	@tools/install-deps.sh lint
	@clang-format -i $(sources)

lint: ## check the look and the layers, and run clang-tidy
	@tools/install-deps.sh lint
	@clang-format --dry-run --Werror $(sources)
	@tools/layers.sh
	@mkdir -p build
	@$(call configure,clang)
	@git ls-files 'src/*.c' 'io/*.c' 'cli/*.c' | xargs -P $(JOBS) -n 4 clang-tidy --quiet -p build/clang

clang: ## build everything with clang too
	@tools/install-deps.sh lint
	@mkdir -p build
	@$(call configure,clang)
	@$(call compile,clang)

sanitize: ## run the fast tests under AddressSanitizer and UBSan
	@tools/install-deps.sh lint
	@mkdir -p build
	@$(call configure,asan)
	@$(call compile,asan)
	@ctest --preset asan

tsan: ## run the threaded tests under ThreadSanitizer (clang)
	@tools/install-deps.sh lint
	@mkdir -p build
	@$(call configure,tsan)
	@$(call compile,tsan)
	@ctest --preset tsan

coverage: ## run the tests and count covered lines and branches
	@tools/install-deps.sh lint
	@mkdir -p build
	@$(call configure,coverage)
	@$(call compile,coverage)
	@tools/coverage.sh build/coverage

fuzz: ## fuzz the readers for FUZZ_SECONDS=60 each (clang)
	@tools/install-deps.sh lint
	@mkdir -p build
	@$(call configure,fuzz)
	@$(call compile,fuzz)
	@tools/fuzz.sh build/fuzz $(FUZZ_SECONDS)

clean: ## remove everything that was built
	@cmake -E rm -rf build out
