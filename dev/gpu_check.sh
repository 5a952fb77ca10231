#!/usr/bin/env bash
# Checks and measures everything on a GPU, in under 8 minutes on an H100, and writes one JSON file:
#   dev/gpu_check.sh [--bin DIR] [--out FILE] [--tag NAME]
# The whole kernel test suite on the device, compute-sanitizer over the attention kernels, every kernel against the limits of the hardware, PyTorch's
# attention beside ours (where there is a torch), a few training steps.
# Without --bin it builds first (needs what scripts/setup.sh installs); with it, it takes the binaries that dev/gpu_package.sh packed elsewhere.
# Needs on the machine: an NVIDIA driver, libcublasLt.so.13 (CUDA toolkit or PyTorch), python3; compute-sanitizer for its part.
set -uo pipefail
cd "$(dirname "$0")/.."
bin="" out="" tag=""
while (($#)); do
  case "$1" in
    --bin) bin=$2 && shift 2 ;;
    --out) out=$2 && shift 2 ;;
    --tag) tag=$2 && shift 2 ;;
    *) echo "gpu_check: unknown argument '$1'; usage: dev/gpu_check.sh [--bin DIR] [--out FILE] [--tag NAME]" >&2 && exit 2 ;;
  esac
done
nvidia-smi -L || { echo "gpu_check: no GPU answers" >&2 && exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
out=${out:-dev/results/gpu_$(nvidia-smi --query-gpu=name --format=csv,noheader | head -1 | tr -cs 'A-Za-z0-9' _ | sed 's/_*$//')$tag.json}

if [[ -z $bin ]]; then
  cmake -S . -B build-gpu/build -DGOAT_CUDA=ON -DGOAT_SIMT=OFF -DGOAT_DEV=ON "-DGOAT_BINARY_DIR=$PWD/build-gpu/build" &&
    cmake --build build-gpu/build --parallel "$(nproc)" --target kernel_tests gpu_kernels train_gpt_goat || exit 1
  bin=$work/bin
  mkdir -p "$bin" && cp build-gpu/build/test/kernel_tests build-gpu/build/dev/gpu_kernels build-gpu/build/train_gpt_goat "$bin/"
fi
chmod +x "$bin"/* 2>/dev/null
# libcublasLt lies beside the toolkit or inside PyTorch's packages.
cublas=$(for folder in /usr/local/cuda*/lib64 $(python3 -c 'import nvidia, os; print(*[os.path.join(p, d, "lib") for p in nvidia.__path__ for d in os.listdir(p)])' 2>/dev/null); do
  [[ -e $folder/libcublasLt.so.13 ]] && echo "$folder"
done | head -1)
export LD_LIBRARY_PATH=$bin/lib:${cublas:-}:${LD_LIBRARY_PATH:-} GOAT_TEST_DEVICES=cuda

section() {  # section NAME SECONDS COMMAND...: runs it, keeps its output, time and exit status, and goes on
  local name=$1 limit=$2 start
  shift 2
  start=$(date +%s.%N)
  timeout "$limit" "$@" >"$work/$name.out" 2>"$work/$name.err"
  echo $? >"$work/$name.status"
  awk -v s="$start" -v e="$(date +%s.%N)" 'BEGIN {printf "%.1f", e - s}' >"$work/$name.seconds"
  echo "== $name: exit $(cat "$work/$name.status"), $(cat "$work/$name.seconds") s"
  tail -n "${TAIL:-6}" "$work/$name.out" "$work/$name.err"
}

section tests 150 "$bin/kernel_tests"
section kernels 100 "$bin/gpu_kernels" --device cuda
if python3 -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then section torch 70 python3 dev/bench/gpu_torch_attention.py; fi
if command -v compute-sanitizer >/dev/null; then
  export GOAT_TEST_REDUCED=1
  section memcheck 70 compute-sanitizer --tool memcheck --error-exitcode 9 "$bin/kernel_tests" -# "[#test_attention_bf16],[#test_attention],[#test_attention_decode]"
  section racecheck 70 compute-sanitizer --tool racecheck --error-exitcode 9 "$bin/kernel_tests" -# "[#test_attention_bf16]"
  unset GOAT_TEST_REDUCED
fi
section train 60 "$bin/train_gpt_goat" --config copy_mixture --device cuda --set model.precision=fp32 --set train.steps=200 --set train.warmup=20 --out "$work/run"

commit=$(cat "$bin/commit" 2>/dev/null || git describe --always --dirty --abbrev=12)
python3 - "$work" "$out" "$commit" <<'PYTHON'
import datetime, json, pathlib, subprocess, sys
work, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
def run(*command):
    try: return subprocess.run(command, capture_output=True, text=True, timeout=20).stdout.strip()
    except Exception as problem: return f"not available: {problem}"
result = {
    "date": datetime.date.today().isoformat(),
    "commit": sys.argv[3],
    "gpu": run("nvidia-smi", "--query-gpu=name,driver_version,clocks.max.sm,power.limit", "--format=csv,noheader"),
    "command": "dev/gpu_check.sh",
}
for status in sorted(work.glob("*.status")):
    name = status.stem
    text = (work / f"{name}.out").read_text(errors="replace")
    section = {"exit": int(status.read_text()), "seconds": float((work / f"{name}.seconds").read_text())}
    try: section["result"] = json.loads(text)
    except ValueError: section["output"] = text[-3000:]
    if section["exit"]: section["errors"] = (work / f"{name}.err").read_text(errors="replace")[-3000:]
    result[name] = section
out.parent.mkdir(parents=True, exist_ok=True)
out.write_text(json.dumps(result, indent=1) + "\n")
print("gpu_check: wrote", out)
PYTHON
! grep -Lx 0 "$work"/*.status | grep -q .  # 0 only if every section passed
