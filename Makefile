# hadal's front door. `make run` and `make test` need nothing installed but make itself: they install
# the Debian packages that are missing (and say which).
JOBS ?= $(shell nproc)
PORT ?= 8080
HOST ?= 127.0.0.1
ARGS ?=

.PHONY: help run build test gpu-test check sanitize seeds fuzz tidy fmt fmt-check bench clean

help:
	@echo "make run     build and serve the embedded model: page and API on http://$(HOST):$(PORT)/"
	@echo "make test    build and run every test that needs no GPU"
	@echo "make gpu-test  the tests of ops and models again, on the GPU"
	@echo "make check   test, and: sanitizers, clang, clang-tidy, formatting, fuzzing"
	@echo "make bench   measure prompt and decode speed on this machine"
	@echo "make fmt     format the sources"
	@echo "Options: PORT=8080 HOST=127.0.0.1 ARGS='--max-num-seqs 8' (for run), JOBS=$(JOBS)"

build:
	@tools/setup.sh run
	@[ -f build/release/build.ninja ] || cmake --preset release -DBUILD_TESTING=OFF >/dev/null
	@cmake --build --preset release -j $(JOBS) --target hadal
	@if [ -e /dev/nvidiactl ] && grep -q '^HADAL_CUDA:BOOL=ON' build/release/CMakeCache.txt; then \
	    echo "an NVIDIA GPU is here: building its backend takes minutes"; \
	    cmake --build --preset release -j $(JOBS) --target hadal_cuda; fi

run: build
	./build/release/hadal serve --host $(HOST) --port $(PORT) $(ARGS)

test:
	@tools/setup.sh test
	@cmake --preset release -DBUILD_TESTING=ON >/dev/null
	@cmake --build --preset release -j $(JOBS)
	ctest --test-dir build/release --output-on-failure -j $(JOBS)

# Needs nvcc; without a GPU every test of it is skipped and says why.
gpu-test:
	@tools/setup.sh test
	@cmake --preset release -DBUILD_TESTING=ON -DHADAL_CUDA=ON >/dev/null
	@cmake --build --preset release -j $(JOBS)
	ctest --test-dir build/release -L gpu --output-on-failure

# Unit, op and simulation tests and the fuzz corpora under ASan+UBSan and under TSan.
sanitize:
	@tools/setup.sh test
	@for p in asan tsan; do \
	    cmake --preset $$p >/dev/null && cmake --build --preset $$p -j $(JOBS) && \
	    ctest --test-dir build/$$p --output-on-failure -j $(JOBS) -LE slow || exit 1; \
	done

# Each fuzz target for FUZZ_SECONDS under libFuzzer; new findings stay in build/fuzz/new.
FUZZ_SECONDS ?= 30
fuzz:
	@tools/setup.sh check
	@cmake --preset fuzz >/dev/null && cmake --build --preset fuzz -j $(JOBS)
	@for f in build/fuzz/tests/fuzz_*; do \
	    [ -x $$f ] && [ ! -d $$f ] || continue; name=$$(basename $$f); mkdir -p build/fuzz/new/$$name; \
	    echo "$$name: $(FUZZ_SECONDS) s"; \
	    $$f -max_total_time=$(FUZZ_SECONDS) -rss_limit_mb=4096 -timeout=20 -verbosity=0 -print_final_stats=1 \
	        build/fuzz/new/$$name tests/fuzz/corpus/$$name || exit 1; \
	done

# More seeds of the simulations than make test has; from FIRST_SEED on.
FIRST_SEED ?= 10000
seeds: test
	./build/release/tests/test_sim $(FIRST_SEED) 5000
	./build/release/tests/test_sim_loop $(FIRST_SEED) 2000
	./build/release/tests/test_sim_load $(FIRST_SEED) 500

tidy:
	@tools/setup.sh check
	@cmake --preset clang >/dev/null && cmake --build --preset clang -j $(JOBS)
	@git ls-files 'lib/*.c' 'srv/*.c' 'cmd/*.c' | xargs -P $(JOBS) -n 4 clang-tidy --quiet -p build/clang

fmt:
	@tools/setup.sh check
	@git ls-files '*.c' '*.h' | xargs clang-format -i

fmt-check:
	@tools/setup.sh check
	@git ls-files '*.c' '*.h' | xargs clang-format --dry-run -Werror

check: test fmt-check tidy sanitize seeds fuzz

bench: build
	./build/release/hadal bench $(ARGS)

clean:
	rm -rf build
