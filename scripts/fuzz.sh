#!/usr/bin/env bash
# Fuzzes the readers of untrusted files with libFuzzer, AddressSanitizer and UBSan: scripts/fuzz.sh [SECONDS each, default 60]
# An input that breaks a reader is left in build/fuzz/; add it to test/fuzz/corpus/ with its fix.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-60}
out=build/fuzz
mkdir -p "$out"

declare -A sources=(
  [config]="train/config/config.cpp train/config/config_keys.cpp train/config/config_validate.cpp train/config/mixture.cpp train/config/presets.cpp data/needle_task.cpp"
  [safetensors]="train/files/safetensors.cpp"
  [manifest]="train/run/manifest.cpp data/parsed_json.cpp data/checksum.cpp train/config/config.cpp train/config/config_keys.cpp train/config/config_validate.cpp train/config/mixture.cpp train/config/presets.cpp data/needle_task.cpp"
  [shard]="data/shard.cpp data/shard_meta.cpp data/shard_set.cpp data/shard_source.cpp data/parsed_json.cpp data/utf8.cpp data/checksum.cpp"
  [shard_meta]="data/shard.cpp data/shard_meta.cpp data/shard_set.cpp data/shard_source.cpp data/crop_source.cpp data/parsed_json.cpp data/utf8.cpp data/checksum.cpp"
  [tokenizer]="data/bpe_tokenizer.cpp data/gpt2_tokenizer.cpp data/tokenizer_json.cpp data/byte_alphabet.cpp
               data/byte_pairs.cpp data/text_pattern.cpp data/pattern_translation.cpp data/unicode_additions.cpp
               data/nfc.cpp data/parsed_json.cpp data/utf8.cpp"
  [hello]="train/ranks/wire.cpp train/ranks/peer.cpp train/ranks/hello_check.cpp"
)

targets=(config safetensors manifest shard shard_meta tokenizer hello)

build() {
  # shellcheck disable=SC2086  # the list is meant to split
  clang++ -std=c++20 -O1 -g -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined -I. "test/fuzz/fuzz_$1.cpp" ${sources[$1]} \
    -lxxhash -lcrypto -lpcre2-8 -lutf8proc -lpthread -o "$out/$1"
}
fuzz() {
  mkdir -p "$out/grown/$1"
  "$out/$1" -max_total_time="$seconds" -max_len=8192 -timeout=10 -print_final_stats=1 -artifact_prefix="$out/$1-" "$out/grown/$1" "test/fuzz/corpus/$1" \
    >"$out/$1.log" 2>&1
}

# All at once, as many at a time as there are cores.
at_once=$(nproc)
each() {  # each COMMAND: runs it for every target, fails if one fails
  local pids=() status=0
  for target in "${targets[@]}"; do
    while (($(jobs -rp | wc -l) >= at_once)); do sleep 0.2; done
    "$1" "$target" &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do wait "$pid" || status=1; done
  return "$status"
}
each build
status=0
each fuzz || status=$?
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
