#!/bin/bash
# Compares the simulated GPU with the prototype it was made from: simt_speed.sh PROTOTYPE_FOLDER [ROUNDS]. Interleaved runs, median of the ratios.
set -euo pipefail
prototype=$1 rounds=${2:-7}
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
flags=(-std=c++20 -O2 -g -w -fno-strict-aliasing -fno-math-errno -fno-trapping-math -isystem "${CUDA_HEADERS:-/usr/local/cuda/include}")
mapfile -t sources < <(ls "$root"/kernels/simt/*.cpp | grep -v -e gemm.cpp -e runtime.cpp -e race_hooks.cpp)
g++ "${flags[@]}" -I"$root" -x c++ "$root/dev/bench/simt_speed.cpp" "$root/kernels/cuda/grid.cu" "${sources[@]}" -o "$work/ours" -pthread -ldl
# The prototype as its own run.sh builds it: for this machine.
g++ "${flags[@]}" -march=native -DPROTOTYPE -I"$prototype" "$root/dev/bench/simt_speed.cpp" "$prototype/simt.cpp" -o "$work/prototype" -pthread -ldl
for ((i = 0; i < rounds; ++i)); do
  "$work/ours" | sed 's/^/ours /'
  "$work/prototype" | sed 's/^/prototype /'
done | python3 -c '
import statistics, sys
values = {}
for line in sys.stdin:
    side, name, ns = line.split()
    values.setdefault(name, {}).setdefault(side, []).append(float(ns))
print("| what | ours, ns | prototype, ns | ratio (median of pairs) |\n|---|---|---|---|")
for name, sides in values.items():
    ratios = [a / b for a, b in zip(sides["ours"], sides["prototype"])]
    print("| %s | %.3g | %.3g | %.2f |" % (name, statistics.median(sides["ours"]), statistics.median(sides["prototype"]), statistics.median(ratios)))
'
