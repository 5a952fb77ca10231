#!/usr/bin/env bash
# Builds here what dev/gpu_check.sh needs on a machine that has a GPU and a driver, but none of our libraries and no network: binaries and the shared
# libraries they load, in build-gpu/bin. ARCHITECTURES=90a by default. Not packed: libcublasLt and NCCL, which the CUDA toolkit or PyTorch brings there.
#   dev/gpu_package.sh [--data DIR] [OPTIONS OF cmake...]
# --data DIR packs text for part extrapolate too: the shards that data/prepare.py text|jsonl --tokenizer gpt2 made in DIR, 30M tokens (60 MB) at most.
# The trainer has the simulated GPU too, whose losses stand beside the GPU's; the kernel tests are to run on the GPU alone.
set -euo pipefail
cd "$(dirname "$0")/.."
architectures=${ARCHITECTURES:-90a}
build=build-gpu/build bin=build-gpu/bin text=build-gpu/text

build() {  # build SIMT TARGETS...: SIMT is ON or OFF; the CUDA kernels are compiled once
  cmake -S . -B "$build" -DGOAT_CUDA=ON "-DGOAT_SIMT=$1" -DGOAT_DEV=ON "-DGOAT_CUDA_ARCHITECTURES=$architectures" "-DGOAT_BINARY_DIR=$PWD/$build" "${flags[@]}"
  cmake --build "$build" --parallel "$(nproc)" --target "${@:2}"
}
flags=() data=""
while (($#)); do
  if [[ $1 == --data ]]; then
    data=${2:?gpu_package: --data needs a folder of shards}
    shift 2
  else
    flags+=("$1")
    shift
  fi
done
rm -rf "$text"
if [[ -n $data ]]; then python3 dev/gpu_extrapolate.py pack "$data" "$text" --longest 32768; fi
rm -rf "$bin"
mkdir -p "$bin/lib"
if [[ -n $data ]]; then mv "$text" "$bin/data"; fi
build OFF kernel_tests gpu_kernels nccl_ranks
cp "$build/test/kernel_tests" "$build/dev/gpu_kernels" "$build/test/nccl_ranks" "$bin/"
build ON train_gpt_goat
cp "$build/train_gpt_goat" "$bin/"

programs=("$bin"/{kernel_tests,gpu_kernels,nccl_ranks,train_gpt_goat})
# Every library but those of the C runtime and the compiler, which are newer or equal wherever CUDA 13 runs.
ldd "${programs[@]}" | awk '$2 == "=>" && $3 ~ /^\// {print $3}' | sort -u |
  grep -vE '/lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+|cublasLt)\.so' | xargs -I{} cp -L {} "$bin/lib/"
strip "${programs[@]}"
git describe --always --dirty --abbrev=12 >"$bin/commit"
du -sh "$bin"
