#!/usr/bin/env bash
# Builds here what dev/gpu_check.sh needs on a machine that has a GPU and a driver, but none of our libraries and no network: binaries and the shared
# libraries they load, in build-gpu/bin. ARCHITECTURES=90a by default. Not packed: libcublasLt, which the CUDA toolkit or PyTorch brings there.
set -euo pipefail
cd "$(dirname "$0")/.."
architectures=${ARCHITECTURES:-90a}
build=build-gpu/build bin=build-gpu/bin

cmake -S . -B "$build" -DGOAT_CUDA=ON -DGOAT_SIMT=OFF -DGOAT_DEV=ON "-DGOAT_CUDA_ARCHITECTURES=$architectures" "-DGOAT_BINARY_DIR=$PWD/$build" "$@"
cmake --build "$build" --parallel "$(nproc)" --target kernel_tests gpu_kernels train_gpt_goat

rm -rf "$bin"
mkdir -p "$bin/lib"
cp "$build/test/kernel_tests" "$build/dev/gpu_kernels" "$build/train_gpt_goat" "$bin/"
strip "$bin/kernel_tests" "$bin/gpu_kernels" "$bin/train_gpt_goat"
# Every library but those of the C runtime and the compiler, which are newer or equal wherever CUDA 13 runs.
ldd "$bin"/{kernel_tests,gpu_kernels,train_gpt_goat} | awk '$2 == "=>" && $3 ~ /^\// {print $3}' | sort -u |
  grep -vE '/lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+|cublasLt)\.so' | xargs -I{} cp -L {} "$bin/lib/"
git describe --always --dirty --abbrev=12 >"$bin/commit"
du -sh "$bin"
