# The front door for people. Everything behind it is CMake: CMakePresets.json and CMakeLists.txt.
#
#   make          the release: build/release/bin/isthmus and build/release/lib/libisthmus.so
#   make demo     the main job on this machine (MODEL=DIR: your checkpoint, WORLD=mpi: two mpirun jobs)
#   make test     every test that this machine can run
#   make bench    measurements beside other libraries, into bench/results and docs/performance.md
#   make chaos    members die, freeze, lose their network, run out of things: 3,000 schedules, see tests/chaos/main.py
#   make faults   system calls that fail: each kind, in each member, at each moment (tests/faults_test.c)
#   make many     512 members on this machine (MANY=n): form, gather, lose three, go on; prints what each keeps
#   make rain     64 members, every hundredth packet lost, five minutes of broadcasts (RAIN=n: members; RAIN_SECONDS)
#   make install  PREFIX=/usr/local, DESTDIR=
# On Debian and Ubuntu what is missing is installed first (scripts/setup).
PREFIX ?= /usr/local
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
SECONDS_EACH ?= 20
MANY ?= 512
RAIN ?= 64
RAIN_SECONDS ?= 300

.DEFAULT_GOAL := release
.PHONY: release dev setup demo test install tidy chaos soak many rain faults fuzz bench checkpoint model generate clean

setup:
	@scripts/setup

release: setup
	@cmake --preset release --log-level=WARNING -Wno-dev
	@cmake --build build/release -j $(JOBS) --target isthmus isthmus_tool

dev: setup
	@cmake --preset dev --log-level=WARNING -Wno-dev
	@cmake --build build/dev -j $(JOBS)

demo: release
	@scripts/demo build/release/bin/isthmus

test: setup
	@scripts/test $(JOBS)

install: release
	@cmake --install build/release --prefix $(PREFIX)

tidy: release
	@python3 tests/tidy.py --build build/release

# What --help, the man pages, docs/errors.md and tests/symbols.txt say comes from tables and headers.
generate: release
	@scripts/gen-man build/release/bin/isthmus
	@scripts/gen-errors
	@scripts/gen-symbols

# CHAOS_ROUNDS (3000), CHAOS_SECONDS (no limit), CHAOS_SEED (printed, repeats the run)
chaos: release
	@cmake --build build/release -j $(JOBS) --target chaos_worker
	@python3 tests/chaos/main.py build/release

# The long form of soak_test: minutes. What is left behind would show.
soak: release
	@cmake --build build/release -j $(JOBS) --target soak_test
	@build/release/bin/soak_test 100000 10000 1000

many: release
	@cmake --build build/release -j $(JOBS) --target many_test
	@build/release/bin/many_test $(MANY)

# As root, in a network of its own. The short form is in load_test.
rain: release
	@cmake --build build/release -j $(JOBS) --target load_test
	@build/release/bin/load_test $(RAIN_SECONDS) $(RAIN)

# Each kind of system call fails at each of its moments; a quarter of an hour.
faults: release
	@cmake --build build/release -j $(JOBS) --target faults_test outcome_test
	@build/release/bin/faults_test long
	@build/release/bin/outcome_test long

fuzz: setup
	@scripts/fuzz $(SECONDS_EACH)

# Beside other libraries, which are installed first; ten minutes at most. BENCH="--rounds 1": other options of bench/run.
bench: release
	@cmake --build build/release -j $(JOBS) --target bench_plan bench_death
	@bench/install
	@bench/run $(BENCH)
	@bench/report

checkpoint: release
	@build/release/bin/isthmus make-checkpoint build/model --layout qwen3-0.6b

# The models beside the code, checked in full (spin): scripts/model says what is expected of each.
model:
	@scripts/model

clean:
	@rm -rf build
