#!/usr/bin/env bash
# Installs what is missing on Debian 12 or Ubuntu 24.04, apt packages and a Python environment in .venv: scripts/setup.sh [quickstart|test|lint|hf]
#   quickstart  what building, training and plotting need
#   test        (default) also what the simulated GPU and its tests need: CUDA's headers (not nvcc) where there is no CUDA toolkit, and cuobjdump where
#               nvcc comes without it, both as wheels in .venv; and TensorBoard, for test/test_tensorboard.py
#   lint        also clang's tools, for make lint, make format and make fuzz, and ccache, for .ci/run
#   hf          only PyTorch, transformers, lm_eval and goat-attention (6 GB), in an environment of their own, .venv-hf:
#               test/test_hf_peer.py and test/test_goat_attention.py compare with them
# Safe to run again: what is there is left alone. Where it may not install (no root, no sudo), it lists what is missing and stops.
set -euo pipefail
cd "$(dirname "$0")/.."
purpose=${1:-test}
[[ $purpose =~ ^(quickstart|test|lint|hf)$ ]] || { echo "setup: '$purpose': quickstart, test, lint or hf" >&2 && exit 2; }

packages=(g++ make cmake git libdnnl-dev libcli11-dev libtomlplusplus-dev nlohmann-json3-dev libxxhash-dev libpcre2-dev libutf8proc-dev libssl-dev libasio-dev catch2 python3 python3-venv)
[[ $purpose == hf ]] && packages=(python3 python3-venv)
[[ $purpose == lint ]] && packages+=(clang clang-format clang-tidy libclang-rt-dev libomp-dev ccache)

missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
done

if ((${#missing[@]})); then
  if [[ $(id -u) -eq 0 ]]; then
    root=()
  elif command -v sudo >/dev/null && { [[ -t 0 ]] || sudo -n true 2>/dev/null; }; then
    root=(sudo)
  else
    echo "setup: these packages are missing and this user may not install them (no root, no sudo):" >&2
    echo "  ${missing[*]}" >&2
    echo "Ask an administrator to run: apt-get install ${missing[*]}" >&2
    exit 1
  fi
  echo "setup: installing ${missing[*]}"
  "${root[@]}" apt-get update -qq
  "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi

environment=.venv requirements=(scripts/requirements.txt)
if [[ $purpose == hf ]]; then
  environment=.venv-hf requirements=(scripts/requirements_hf.txt)
elif [[ $purpose != quickstart ]]; then
  toolkit=$(dirname "$(readlink -f "$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)")")/..
  [[ -e $toolkit/include/cuda_runtime.h || -e /usr/local/cuda/include/cuda_runtime.h || -e /usr/include/cuda_runtime.h ]] ||
    requirements+=(scripts/requirements_cuda_headers.txt)
  requirements+=(scripts/requirements_tensorboard.txt)
  if [[ -x $toolkit/bin/nvcc && ! -x $toolkit/bin/cuobjdump ]] && ! command -v cuobjdump >/dev/null; then
    requirements+=(scripts/requirements_cuda_tools.txt)
  fi
fi
# An environment that does not answer (a Python that is gone, a broken pip) is made again, with all of its lists.
"$environment/bin/python" -m pip --version >/dev/null 2>&1 || python3 -m venv --clear "$environment"
installed=$environment/installed  # a copy of each list whose packages are there
lacking=()
for list in "${requirements[@]}"; do
  cmp -s "$list" "$installed/$(basename "$list")" || lacking+=("$list")
done
if ((${#lacking[@]})); then
  echo "setup: Python packages of ${lacking[*]} in $environment"
  "$environment/bin/python" -m pip install --quiet --disable-pip-version-check "${lacking[@]/#/--requirement=}"
  mkdir -p "$installed"
  cp "${lacking[@]}" "$installed"  # last: an interrupted installation is repeated
fi
echo "setup: everything is there"
