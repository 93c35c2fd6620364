# make                 train_gpt: needs a C compiler with OpenMP, and cJSON
# make test            every test (scripts/setup.sh installs what they need)
# make demo            three pretraining runs that differ in their attention alone, and their report
# make test-hf        the tests with Hugging Face's transformers (scripts/setup.sh --hf installs it); part of `make test` where it is
# make test-asan       the C tests under AddressSanitizer and UndefinedBehaviorSanitizer
# make bench           how fast it is, beside how fast the machine is
# make docs            docs/config.md, from the table that parses the config
# make clean
# Options: CC=clang; PORTABLE=1 (x86-64-v3 instead of this machine's own instructions); SANITIZE=1; CFLAGS=... replaces -O3 -g.

VERSION := 0.1.0
PYTHON  ?= .venv/bin/python
BUILD   ?= build/$(if $(SANITIZE),sanitized,$(if $(PORTABLE),portable,native))

# ---- flags ----
MACHINE := $(shell uname -m)
ifeq ($(MACHINE),x86_64)
ARCHITECTURE := $(if $(PORTABLE),-march=x86-64-v3,-march=native)
else
ARCHITECTURE := $(if $(PORTABLE),,-mcpu=native)
endif
CFLAGS   ?= $(if $(SANITIZE),-O1 -g -fno-omit-frame-pointer -fsanitize=address$(COMMA)undefined -fno-sanitize-recover=undefined,-O3 -g)
COMMA    := ,
WARNINGS := -Wall -Wextra
# gnu11, not c11: c11 would turn contraction to FMA off. No -ffast-math: a NaN must stay visible.
ALL_CFLAGS = -std=gnu11 $(CFLAGS) $(ARCHITECTURE) -fopenmp $(WARNINGS) -MMD -MP -I. $(CJSON_CFLAGS) $(CPPFLAGS)
ALL_LDFLAGS = $(CFLAGS) -fopenmp $(LDFLAGS)
CJSON_CFLAGS := $(shell pkg-config --cflags libcjson 2>/dev/null)
CJSON_LIBS   := $(shell pkg-config --libs libcjson 2>/dev/null || echo -lcjson)
CMOCKA_LIBS  := $(shell pkg-config --libs cmocka 2>/dev/null || echo -lcmocka)

# ---- what is built ----
CORE   := $(patsubst %.c,$(BUILD)/%.o,$(wildcard core/*.c))
DEVICE := $(BUILD)/cpu/device_float.o
DOUBLE := $(BUILD)/cpu/device_double.o
TESTS  := $(patsubst %.c,$(BUILD)/%,$(wildcard tests/test_*.c))
HELPERS := $(BUILD)/tests/naive.o $(BUILD)/tests/support.o
PYTHON_TESTS := $(filter-out tests/test_hf.py,$(wildcard tests/test_*.py))
HF_PYTHON ?= .venv-hf/bin/python

.PHONY: all test test-c test-python test-hf test-asan bench demo docs clean FORCE
.SECONDARY:
.DELETE_ON_ERROR:

all: train_gpt

# A link to the build asked for last, also when it is older than another.
train_gpt: $(BUILD)/train_gpt FORCE
	@[ "$$(readlink $@)" = $< ] || ln -sf $< $@

$(BUILD)/train_gpt: $(BUILD)/train_gpt.o $(CORE) $(DEVICE)
	$(CC) $(ALL_LDFLAGS) $^ $(CJSON_LIBS) -lm -o $@

$(BUILD)/%.o: %.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) -c $< -o $@

# The same numbers on every machine: no contraction to FMA where random numbers are made.
$(BUILD)/core/random.o: ALL_CFLAGS += -ffp-contract=off
$(BUILD)/core/version.o: CPPFLAGS += -DPROGRAM_VERSION='"$(shell cat $(BUILD)/version 2>/dev/null)"'
$(BUILD)/core/version.o: $(BUILD)/version

# The Hugging Face modeling file, carried in the program: its bytes as decimal numbers.
$(BUILD)/core/modeling_train_gpt.inc: scripts/hf/modeling_train_gpt.py
	@mkdir -p $(@D)
	LC_ALL=C od -An -v -tu1 $< | sed 's/  *\([0-9][0-9]*\)/\1,/g' > $@
$(BUILD)/core/hf_modeling.o: private CPPFLAGS += -I$(BUILD)/core
$(BUILD)/core/hf_modeling.o: $(BUILD)/core/modeling_train_gpt.inc

$(BUILD)/cpu/device_float.o: cpu/device.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) -DREAL=float -c $< -o $@

$(BUILD)/cpu/device_double.o: cpu/device.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) -DREAL=double -c $< -o $@

# Compiler and flags, checked once; everything is built again when they change. A compiler without OpenMP stops here: a program on one core
# would look like a slow one.
$(BUILD)/flags: FORCE
	@mkdir -p $(@D)
	@echo '$(CC) $(CFLAGS) $(ARCHITECTURE) $(CPPFLAGS)' | cmp -s - $@ || { \
	    printf '#include <omp.h>\nint main(void) { return omp_get_max_threads() < 1; }\n' > $(@D)/probe.c; \
	    $(CC) -fopenmp $(@D)/probe.c -o $(@D)/probe 2> $(@D)/probe.log || { cat $(@D)/probe.log >&2; \
	        echo "make: $(CC) cannot build an OpenMP program; install gcc, or for clang libomp-dev (scripts/setup.sh does it)" >&2; exit 1; }; \
	    printf '#include <cjson/cJSON.h>\nint main(void) { return !cJSON_Version(); }\n' > $(@D)/probe.c; \
	    $(CC) $(CJSON_CFLAGS) $(@D)/probe.c $(CJSON_LIBS) -o $(@D)/probe 2> $(@D)/probe.log || { cat $(@D)/probe.log >&2; \
	        echo "make: cJSON is missing; install libcjson-dev (scripts/setup.sh does it)" >&2; exit 1; }; \
	    echo '$(CC) $(CFLAGS) $(ARCHITECTURE) $(CPPFLAGS)' > $@; }

$(BUILD)/version: FORCE
	@mkdir -p $(@D)
	@commit=$$(git rev-parse --short HEAD 2>/dev/null); \
	if [ -n "$$commit" ]; then git diff --quiet HEAD -- '*.c' '*.h' Makefile 2>/dev/null || commit="$$commit, modified"; fi; \
	text="$(VERSION)$${commit:+ (git $$commit)}"; \
	[ "$$(cat $@ 2>/dev/null)" = "$$text" ] || printf '%s' "$$text" > $@

# ---- tests ----
$(BUILD)/tests/test_%: $(BUILD)/tests/test_%.o $(HELPERS) $(CORE) $(DEVICE) $(DOUBLE)
	$(CC) $(ALL_LDFLAGS) $^ $(CMOCKA_LIBS) $(CJSON_LIBS) -lm -o $@

# All groups run, also when one of them fails.
test: all
	@status=0; for group in test-c test-python $(if $(wildcard .venv-hf/installed-requirements.txt),test-hf) test-asan; do \
	    $(MAKE) --no-print-directory -j$$(nproc) $$group || status=1; done; exit $$status

test-c: $(BUILD)/train_gpt $(TESTS)
	@TRAIN_GPT=$(BUILD)/train_gpt scripts/run_tests.sh $(TESTS)

test-python: $(BUILD)/train_gpt
	@scripts/run_tests.sh $(addprefix $(PYTHON)=,$(PYTHON_TESTS))

test-hf: $(BUILD)/train_gpt
	@test -x $(HF_PYTHON) || { echo "make: $(HF_PYTHON) is missing; scripts/setup.sh --hf makes it" >&2; exit 1; }
	@TRAIN_GPT=$(BUILD)/train_gpt scripts/run_tests.sh $(HF_PYTHON)=tests/test_hf.py

test-asan:
	@ASAN_OPTIONS=allocator_may_return_null=1 $(MAKE) --no-print-directory SANITIZE=1 BUILD=build/sanitized test-c

# ---- the rest ----
demo: train_gpt
	scripts/demo.sh

bench: $(BUILD)/tests/bench
	$<

$(BUILD)/tests/bench: $(BUILD)/tests/bench.o $(HELPERS) $(CORE) $(DEVICE)
	$(CC) $(ALL_LDFLAGS) $^ $(CMOCKA_LIBS) $(CJSON_LIBS) -lm -o $@

docs: train_gpt
	./train_gpt help --markdown > docs/config.md

clean:
	rm -rf build train_gpt

-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)
