#!/usr/bin/env bash
# Fuzzes the readers of untrusted files with libFuzzer, AddressSanitizer and UBSan: scripts/fuzz.sh [SECONDS each, default 60]
# An input that breaks a reader is left in build/fuzz/; add it to test/fuzz/corpus/ with its fix.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-60}
out=build/fuzz
mkdir -p "$out"

declare -A sources=(
  [config]="train/config.cpp train/config_keys.cpp train/config_validate.cpp train/presets.cpp"
  [safetensors]="train/safetensors.cpp train/files.cpp"
  [manifest]="train/checkpoint.cpp train/safetensors.cpp train/files.cpp train/parameters.cpp train/memory.cpp train/config.cpp train/config_keys.cpp
              train/config_validate.cpp train/presets.cpp kernels/tensor.cpp"
  [shard]="data/shard.cpp data/shard_source.cpp"
)

for target in "${!sources[@]}"; do
  # shellcheck disable=SC2086  # the list is meant to split
  clang++ -std=c++20 -O1 -g -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined -I. "test/fuzz/fuzz_$target.cpp" ${sources[$target]} \
    -lxxhash -lpthread -o "$out/$target"
done
status=0
for target in config safetensors manifest shard; do
  mkdir -p "$out/grown/$target"
  if "$out/$target" -max_total_time="$seconds" -max_len=8192 -timeout=10 -print_final_stats=1 -artifact_prefix="$out/$target-" \
    "$out/grown/$target" "test/fuzz/corpus/$target" >"$out/$target.log" 2>&1; then
    echo "fuzz $target: $(sed -n 's/stat::number_of_executed_units: *//p' "$out/$target.log") executions in $seconds s, no fault"
  else
    echo "fuzz $target: FAULT"
    tail -40 "$out/$target.log"
    status=1
  fi
done
exit "$status"
