#!/usr/bin/env bash
# Installs what building, testing and plotting need on Debian 12 or Ubuntu 24.04: apt packages and a Python environment in .venv. Where there is no
# CUDA toolkit, its headers (not nvcc) go into .venv too: the simulated GPU is compiled with them. So does cuobjdump where nvcc comes without it.
# Safe to run again: what is there is left alone. Where it may not install (no root, no sudo), it lists what is missing and stops.
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(g++ make cmake git libdnnl-dev libcli11-dev libtomlplusplus-dev nlohmann-json3-dev libxxhash-dev libpcre2-dev catch2 clang clang-format clang-tidy libclang-rt-dev libomp-dev python3 python3-venv)

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

requirements=(scripts/requirements.txt)
toolkit=$(dirname "$(readlink -f "$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)")")/..
[[ -e $toolkit/include/cuda_runtime.h || -e /usr/local/cuda/include/cuda_runtime.h || -e /usr/include/cuda_runtime.h ]] ||
  requirements+=(scripts/requirements_cuda_headers.txt)
if [[ -x $toolkit/bin/nvcc && ! -x $toolkit/bin/cuobjdump ]] && ! command -v cuobjdump >/dev/null; then
  requirements+=(scripts/requirements_cuda_tools.txt)
fi
stamp=.venv/requirements.txt
if ! cat "${requirements[@]}" | cmp -s - "$stamp"; then
  echo "setup: Python environment in .venv"
  [[ -x .venv/bin/python ]] && .venv/bin/python -m pip --version >/dev/null 2>&1 || python3 -m venv --clear .venv
  .venv/bin/python -m pip install --quiet --disable-pip-version-check "${requirements[@]/#/--requirement=}"
  cat "${requirements[@]}" >"$stamp"  # last: an interrupted installation is repeated
fi
echo "setup: everything is there"
