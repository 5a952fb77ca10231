#!/usr/bin/env bash
# scripts/train_nodes.sh NODE NODES RANKS COMMAND...
# Starts this host's RANKS ranks of a run on NODES hosts: the same call on each of them, with NODE = 0, 1, ...
# Every host needs MASTER_ADDR=HOST, the name or address of host 0, and may set MASTER_PORT (default 29400):
#   MASTER_ADDR=node0 scripts/train_nodes.sh 1 4 8 ./train_gpt_goat --config c4_125m --out /shared/runs/c4
# All hosts must see the run folder and the data. When one rank fails, all end, here and on the other hosts.
# Signals are passed on to the ranks. The code is that of the first rank here that failed; else 4 if the run
# was stopped by a signal after saving; else 0. Several hosts need GPUs: ranks of the cpu train together on one
# host only (docs/ranks.md).
set -uo pipefail

count='^(0|[1-9][0-9]{0,4})$'
if [[ $# -lt 4 || ! $1 =~ $count || ! $2 =~ $count || ! $3 =~ $count ]] || (($1 >= $2 || $3 == 0)); then
  echo "usage: MASTER_ADDR=HOST scripts/train_nodes.sh NODE NODES RANKS COMMAND...  (0 <= NODE < NODES)" >&2
  exit 2
fi
if [[ -z ${MASTER_ADDR:-} ]]; then
  echo "train_nodes: MASTER_ADDR is not set; export the name or address of host 0" >&2
  exit 2
fi
node=$1 nodes=$2 ranks=$3
shift 3
threads=$(($(nproc) / ranks))
export MASTER_ADDR MASTER_PORT=${MASTER_PORT:-29400} WORLD_SIZE=$((nodes * ranks)) LOCAL_WORLD_SIZE=$ranks
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((threads > 0 ? threads : 1))}

stop="" children=()
on_signal() {
  stop=$1
  local child
  for child in "${children[@]}"; do # a copy of this script, which it is at first, would lose the signal
    while cmp -s "/proc/$child/cmdline" "/proc/$$/cmdline"; do sleep 0.01; done
    kill "-$stop" "$child" 2>/dev/null
  done
}
trap 'on_signal TERM' TERM INT # a job in the background ignores SIGINT
trap 'on_signal USR1' USR1
trap 'on_signal HUP' HUP

for ((local_rank = 0; local_rank < ranks; ++local_rank)); do
  RANK=$((node * ranks + local_rank)) LOCAL_RANK=$local_rank "$@" &
  children+=($!)
done
[[ -z $stop ]] || on_signal "$stop" # it may have come before them

failed=0 stopped=0
for ((local_rank = 0; local_rank < ranks; ++local_rank)); do
  ended=""
  while [[ -z ${ended:-} ]]; do # a signal ends the wait, not the rank
    wait -p ended "${children[local_rank]}"
    code=$?
  done
  case $code in
    0) ;;
    4) stopped=4 ;;
    *)
      echo "train_nodes: rank $((node * ranks + local_rank)) ended with code $code" >&2
      ((failed > 0)) || failed=$code
      ;;
  esac
done
exit $((failed > 0 ? failed : stopped))
