#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Members die at random moments. After each round: everybody has ended in time, nothing is left in /dev/shm or beside the
# destination, and the next round works.  tests/chaos.sh PATH/TO/isthmus [ROUNDS] [SEED]
set -u
isthmus=$(realpath "$1")
rounds=${2:-10}
RANDOM=${3:-$$}
seed=${3:-$$}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
echo "chaos: $rounds rounds, seed $seed"
"$isthmus" make-checkpoint "$work/model" --tensors 20 --bytes 64MiB --quiet || exit 1
before=$(find /dev/shm -mindepth 1 | sort)

fail() {
	echo "chaos: round $round, seed $seed: $1" >&2
	exit 1
}
start() { # RANK VERB WHAT
	timeout -k 5 60 "$isthmus" "$2" "$3" --at "$at" --rank "$1" --world 3 --timeout 20 --no-progress 5 --quiet > "$work/log.$1" 2>&1 &
	pids[$1]=$!
}
for ((round = 1; round <= rounds; round++)); do
	coproc store { exec "$isthmus" store --bind 127.0.0.1:0 --quiet; }
	store_process=$store_PID
	read -r at <&"${store[0]}" || fail "the store said nothing"
	pids=()
	start 0 push "$work/model"
	start 1 pull "$work/copy"
	start 2 pull null:
	victim=$((RANDOM % 4)) # 3: nobody
	if [ "$victim" -lt 3 ]; then
		sleep "0.$((RANDOM % 10))$((RANDOM % 10))"
		pkill -KILL -P "${pids[$victim]}" 2>/dev/null
	fi
	codes=()
	for rank in 0 1 2; do
		wait "${pids[$rank]}"
		codes[rank]=$?
		[ "${codes[rank]}" -eq 124 ] && [ "$victim" -eq 3 ] && fail "rank $rank ran into its deadline"
	done
	if [ "$victim" -eq 3 ]; then
		[ "${codes[*]}" = "0 0 0" ] || fail "nobody was killed, yet: ${codes[*]}: $(cat "$work"/log.*)"
		diff -r "$work/model" "$work/copy" > /dev/null || fail "the copy differs"
	fi
	kill "$store_process" 2>/dev/null
	wait "$store_process" 2>/dev/null
	[ "$(find /dev/shm -mindepth 1 | sort)" = "$before" ] || fail "left in /dev/shm: $(find /dev/shm -mindepth 1)"
	if [ -d "$work/copy" ]; then diff -r "$work/model" "$work/copy" > /dev/null || fail "a copy that is not whole"; fi
	echo "chaos: round $round, killed ${victim/3/nobody}, statuses ${codes[*]}"
done
# what a killed pull left is removed by the next one
round=last
"$isthmus" run -n 2 -- sh -c "if [ \$RANK = 0 ]; then exec $isthmus push $work/model -q; else exec $isthmus pull $work/copy -q; fi" || fail "the last round"
[ "$(find "$work" -maxdepth 1 -name '.*' | wc -l)" -eq 0 ] || fail "left beside the destination: $(ls -A "$work")"
echo "chaos: done"
