#!/usr/bin/env bash
# scripts/keep_training.sh COMMAND...
# Runs a training command, and again from its newest checkpoint when it fails, as long as each start brings a
# newer checkpoint or takes ten minutes. COMMAND names the folder with --out, and is given --resume:
#   scripts/keep_training.sh ./train_gpt_goat --config c4_125m --out runs/c4 --ranks 2
# Ends with the command's code where trying again would not help: 0 done, 2 bad usage or config, 3 bad data or
# checkpoint, 4 stopped by a signal after saving. Signals are passed on. WAIT=10 seconds lie between two starts.
set -uo pipefail

run="" before=""
for word in "$@"; do
  [[ $before != --out ]] || run=$word
  [[ $word != --out=* ]] || run=${word#--out=}
  before=$word
done
if [[ $# -eq 0 || -z $run ]]; then
  echo "usage: scripts/keep_training.sh COMMAND... --out RUN" >&2
  exit 2
fi

newest() { find "$run/checkpoints" -maxdepth 1 -name 'step_*' 2>/dev/null | sort | tail -n 1; }

child=""
pass_on() { [[ -z $child ]] || kill "-$1" "$child"; }
trap 'pass_on TERM' TERM INT # a job in the background ignores SIGINT
trap 'pass_on USR1' USR1
trap 'pass_on HUP' HUP

while :; do
  reached=$(newest) start=$SECONDS
  "$@" --resume &
  child=$!
  wait "$child"
  code=$?
  while kill -0 "$child" 2>/dev/null; do # a signal has ended the wait, not the command
    wait "$child"
    code=$?
  done
  child=""
  case $code in 0 | 2 | 3 | 4) exit "$code" ;; esac
  if [[ $(newest) == "$reached" ]] && ((SECONDS - start < 600)); then
    echo "keep_training: code $code again, and no newer checkpoint in $run than ${reached:-none}: given up" >&2
    exit "$code"
  fi
  echo "keep_training: ended with code $code; goes on from $(newest) in ${WAIT:-10} s" >&2
  sleep "${WAIT:-10}"
done
