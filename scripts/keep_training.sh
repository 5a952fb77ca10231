#!/usr/bin/env bash
# scripts/keep_training.sh COMMAND...
# Runs a training command, and again from its newest checkpoint when it fails. COMMAND names the run's folder
# with --out, and is given --resume:
#   scripts/keep_training.sh ./train_gpt_goat --config c4_125m --out runs/c4
# Ends with the command's code where another start would not help: 0 done, 2 bad usage or config, 3 bad data
# or checkpoint, 4 stopped by a signal after saving. Ends with any other code after three starts in a row that
# brought no newer checkpoint. SIGTERM, SIGINT (as SIGTERM), SIGUSR1 and SIGHUP are passed on, and no start
# follows them: the code is that of the last start, also if the signal comes after it had failed. WAIT=10
# seconds lie between two starts.
set -uo pipefail
pause=${WAIT:-10} most_in_vain=3

run="" before=""
for word in "$@"; do
  [[ $before != --out ]] || run=$word
  [[ $word != --out=* ]] || run=${word#--out=}
  before=$word
done
if [[ -z $run ]]; then
  echo "usage: scripts/keep_training.sh COMMAND... --out RUN" >&2
  exit 2
fi

# With its time: a checkpoint that is damaged is made again under the same name.
newest() {
  find "$run/checkpoints" -maxdepth 1 -name 'step_*' -printf '%f %T@\n' 2>/dev/null | sort -V | tail -n 1
}

stop="" child=""
pass_on() { # a copy of this script, which the child is at first, would lose the signal
  while cmp -s "/proc/$child/cmdline" "/proc/$$/cmdline"; do sleep 0.01; done
  kill "-$stop" "$child" 2>/dev/null
}
on_signal() {
  stop=$1
  [[ -z $child ]] || pass_on
}
trap 'on_signal TERM' TERM INT # a job in the background ignores SIGINT
trap 'on_signal USR1' USR1
trap 'on_signal HUP' HUP

in_vain=0
while :; do
  reached=$(newest)
  "$@" --resume &
  child=$!
  [[ -z $stop ]] || pass_on # it came before there was a child
  ended=""
  while [[ -z ${ended:-} ]]; do # a signal ends the wait, but not the command
    wait -p ended "$child"
    code=$?
  done
  child=""
  case $code in 0 | 2 | 3 | 4) exit "$code" ;; esac
  [[ -z $stop ]] || exit "$code"
  in_vain=$((in_vain + 1))
  [[ $(newest) == "$reached" ]] || in_vain=0
  if ((in_vain == most_in_vain)); then
    echo "keep_training: code $code, and no newer checkpoint in $run from $in_vain starts: given up" >&2
    exit "$code"
  fi
  echo "keep_training: the command ended with code $code and is started again in $pause s" >&2
  begin=$SECONDS
  while ((SECONDS - begin < pause)) && [[ -z $stop ]]; do sleep 0.5; done
  if [[ -n $stop ]]; then
    echo "keep_training: SIG$stop after the command had ended with code $code; continue with --resume" >&2
    exit "$code"
  fi
done
