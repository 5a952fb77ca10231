#!/usr/bin/env bash
# Fuzzes the readers of untrusted files with libFuzzer, AddressSanitizer and UBSan: scripts/fuzz.sh [SECONDS each, default 60]
# An input that breaks a reader is left in build/fuzz/; add it to test/fuzz/corpus/ with its fix.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-60}
out=build/fuzz
mkdir -p "$out"

targets=(config safetensors manifest shard shard_meta tokenizer hello)

# The readers and all that they use: a library, from which the linker takes what a target needs.
readers() { ls data/*.cpp train/config/*.cpp train/files/*.cpp train/run/manifest.cpp train/ranks/{wire,peer,hello_check}.cpp; }
flags=(-std=c++20 -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=undefined -I.)
compile() {  # compile SOURCE: to an object in build/fuzz/objects
  clang++ "${flags[@]}" -fsanitize=fuzzer-no-link -c "$1" -o "$out/objects/${1//\//-}.o"
}
build() {
  clang++ "${flags[@]}" -fsanitize=fuzzer "test/fuzz/fuzz_$1.cpp" "$out/readers.a" -lxxhash -lcrypto -lpcre2-8 -lutf8proc -lpthread -o "$out/$1"
}
fuzz() {
  mkdir -p "$out/grown/$1"
  "$out/$1" -max_total_time="$seconds" -max_len=8192 -timeout=10 -print_final_stats=1 -artifact_prefix="$out/$1-" "$out/grown/$1" "test/fuzz/corpus/$1" \
    >"$out/$1.log" 2>&1
}

# All at once, as many at a time as there are cores.
at_once=$(nproc)
each() {  # each COMMAND ITEM...: runs it for every item, fails if one fails
  local command=$1 pids=() status=0
  shift
  for item in "$@"; do
    while (($(jobs -rp | wc -l) >= at_once)); do sleep 0.2; done
    "$command" "$item" &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do wait "$pid" || status=1; done
  return "$status"
}
rm -rf "$out/objects" "$out/readers.a"
mkdir "$out/objects"
mapfile -t sources < <(readers)
each compile "${sources[@]}"
ar rcs "$out/readers.a" "$out"/objects/*.o
each build "${targets[@]}"
status=0
each fuzz "${targets[@]}" || status=$?
for target in "${targets[@]}"; do
  if runs=$(sed -n 's/stat::number_of_executed_units: *//p' "$out/$target.log") && [[ -n $runs ]] && ! grep -q 'ERROR: \|SUMMARY: ' "$out/$target.log"; then
    echo "fuzz $target: $runs executions in $seconds s, no fault"
  else
    echo "fuzz $target: FAULT"
    tail -40 "$out/$target.log"
    status=1
  fi
done
exit "$status"
