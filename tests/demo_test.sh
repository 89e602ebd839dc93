#!/bin/sh
# The demo as a user runs it: it verifies; a flipped byte is named and exits with 3; nothing is left behind; with mpirun
# at hand (and no sanitizer, which Open MPI's own leaks would trip) the two old worlds are MPI worlds.
set -u
isthmus=$1 instrumented=$2
fail() { echo "demo_test: $1" >&2; exit 1; }
before=$(ls /dev/shm)
out=$("$isthmus" demo --quiet) || fail "demo exits with $?"
echo "$out"
echo "$out" | grep -q 'yes *$' || fail "the table does not say that it was verified"
ISTHMUS_FAULT=flip "$isthmus" demo --quiet >/dev/null 2>flip.log
[ $? -eq 3 ] || fail "a flipped byte does not exit with 3: $(cat flip.log)"
grep -q 'tensor: *model\.' flip.log || fail "a flipped byte's tensor is not named: $(cat flip.log)"
if command -v mpirun >/dev/null && [ "$instrumented" = 0 ]; then
	out=$(WORLD=mpi "$isthmus" demo --quiet) || fail "the demo of two MPI worlds exits with $?"
	echo "$out" | grep -q 'yes *$' || fail "two MPI worlds: not verified"
else
	echo "demo_test: two MPI worlds not run: no mpirun here, or an instrumented build"
fi
[ "$(ls /dev/shm)" = "$before" ] || fail "something is left in /dev/shm"
