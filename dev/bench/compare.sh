#!/usr/bin/env bash
# Times bench_step and PyTorch in turn and prints the medians of their ratios, so that a disturbance of the machine meets both.
#
#   OMP_NUM_THREADS=2 dev/bench/compare.sh [rounds]
#
# BENCH_STEP: the program (build/dev/bench_step). PYTHON: a Python that has torch (python3). BASELINE: a further script that prints
# "median ... ms", timed as it is. STEPS: timed steps a round (5).
set -euo pipefail
cd "$(dirname "$0")/../.."

rounds=${1:-5}
steps=${STEPS:-5}
python=${PYTHON:-python3}
bench_step=${BENCH_STEP:-build/dev/bench_step}
times=$(mktemp)
trap 'rm -f "$times"' EXIT

# The number in front of " ms" or after "ms_per_step", in the last line that has one.
milliseconds() { sed -nE 's/.*ms_per_step ([0-9.]+).*/\1/p; s/.* ([0-9.]+) ms(\/step)? +.*/\1/p' | tail -1; }

time_one() {  # name command...
  local name=$1 load result
  shift
  load=$(cut -d' ' -f1 /proc/loadavg)
  result=$("$@" | tee /dev/stderr | milliseconds)
  [ -n "$result" ] || { echo "error: no time in the output of: $*" >&2; exit 1; }
  echo "$round $name $result $load" >>"$times"
}

for round in $(seq "$rounds"); do
  time_one goat "$bench_step" --brief --steps "$steps" --attention goat
  time_one torch-eager "$python" dev/bench/bench_torch.py --steps "$steps" --form eager
  time_one torch-sdpa "$python" dev/bench/bench_torch.py --steps "$steps" --form sdpa
  time_one torch-sdpa-fused-adamw "$python" dev/bench/bench_torch.py --steps "$steps" --form sdpa --fused
  if [ -n "${BASELINE:-}" ]; then STEPS=$((steps + 2)) time_one baseline "$python" "$BASELINE"; fi
done 2>&1 | sed 's/^/  /'

echo "round, program, ms a step, load average before it:"
cat "$times"
echo
sort -k2,2 -s "$times" | awk '
  function median(list, n,   i, j, t) {
    for (i = 2; i <= n; i++) for (j = i; j > 1 && list[j] < list[j-1]; j--) { t = list[j]; list[j] = list[j-1]; list[j-1] = t }
    return n % 2 ? list[(n + 1) / 2] : (list[n / 2] + list[n / 2 + 1]) / 2
  }
  { time[$2, $1] = $3; if (!($2 in count)) names[++programs] = $2; count[$2]++ }
  END {
    for (p = 1; p <= programs; p++) {
      for (r = 1; r <= count[names[p]]; r++) { ms[r] = time[names[p], r]; ratio[r] = time[names[p], r] / time["goat", r] }
      n = count[names[p]]
      printf "%-24s median %8.1f ms a step; median of %d ratios to goat: %.3f\n", names[p], median(ms, n), n, median(ratio, n)
    }
  }'
