#!/usr/bin/env bash
# scripts/train_nodes.sh NODE NODES RANKS COMMAND...
# Starts this host's RANKS ranks of a run on NODES hosts: the same command on each of them, with NODE = 0, 1, ..
# Every host needs MASTER_ADDR=HOST, the name or address of host 0, and may set MASTER_PORT (default 29400):
#   MASTER_ADDR=node0 scripts/train_nodes.sh 1 4 8 ./train_gpt_goat --config c4_125m --out /shared/runs/c4
# The run folder and the data must be on a file system that all hosts share. When one rank fails, all end, here
# and on the other hosts; the code is that of the first that failed here. Signals are passed on to all ranks.
set -uo pipefail

whole='^[0-9]+$'
if [[ $# -lt 4 || ! $1 =~ $whole || ! $2 =~ $whole || ! $3 =~ $whole ]] || (($1 >= $2 || $3 == 0)); then
  echo "usage: MASTER_ADDR=HOST scripts/train_nodes.sh NODE NODES RANKS COMMAND...  (0 <= NODE < NODES)" >&2
  exit 2
fi
if [[ -z ${MASTER_ADDR:-} ]]; then
  echo "train_nodes: MASTER_ADDR is not set; export the name or address of host 0" >&2
  exit 2
fi
node=$1 nodes=$2 ranks=$3
shift 3
export MASTER_ADDR MASTER_PORT=${MASTER_PORT:-29400} WORLD_SIZE=$((nodes * ranks)) LOCAL_WORLD_SIZE=$ranks
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((($(nproc) + ranks - 1) / ranks))}

children=()
for ((local_rank = 0; local_rank < ranks; ++local_rank)); do
  RANK=$((node * ranks + local_rank)) LOCAL_RANK=$local_rank "$@" &
  children+=($!)
done
pass_on() { kill "-$1" "${children[@]}" 2>/dev/null; }
trap 'pass_on TERM' TERM INT # a job in the background ignores SIGINT
trap 'pass_on USR1' USR1
trap 'pass_on HUP' HUP

first=0
for child in "${children[@]}"; do
  wait "$child"
  code=$?
  while kill -0 "$child" 2>/dev/null; do # a signal has ended the wait, not the rank
    wait "$child"
    code=$?
  done
  ((first != 0)) || first=$code
done
exit "$first"
