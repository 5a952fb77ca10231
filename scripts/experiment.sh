# shellcheck disable=SC2034,SC2154  # variables pass between this file and the script that sources it
# shellcheck shell=bash
# What scripts/run_*.sh share; they source it and call main "$@" at their end. Before that a script defines
#   about            what it does, for --help
#   space            gigabytes that data and runs take
#   places           where they are: patterns
#   prepare_data     makes the shards, unless they are there; in $files if $small is set
#   experiment       calls runs for each model
#   small            settings of a tiny model on those files, for --small
#   small_lengths    what such a model is evaluated at
#   by_length        what plot.py draws of all evaluations (default: extrapolation)
# All of it works in the folder that --folder names: data/ and runs/ are made there.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=$root/.venv/bin/python
script=scripts/$(basename "$0")
is_small="" is_check="" folder="" attentions=${attentions:-goat} trainer=() settings=()
by_length=${by_length:-extrapolation}
files=files # of --small: small_data.py makes them in the formats of the real ones

# What --small may take for `small` and `small_lengths`.
small_lengths=64,128,256
small_training=(--set train.steps=30 --set train.batch=8 --set train.micro_batch=8 --set train.warmup=5
  --set log.interval=10 --set eval.interval=10 --set eval.tokens=2048)
small_text=(--set model.layers=2 --set model.heads=2 --set model.width=32 --set data.seq_len=64
  --set model.vocab=400 --set data.bos=0 "${small_training[@]}")
small_tokens=(--tokenizer "$files/tokenizer.json" --max-tokens 60000 --shard-tokens 20000)

usage() {
  cat <<TEXT
$script [--small] [--folder FOLDER] [--attention LIST] [OPTIONS OF THE TRAINER...]

$about
Started again, it goes on where it was stopped; shards, runs and evaluations that are complete stay.

  --small            the same on generated files and a tiny model, in a minute (default FOLDER: build/small)
  --folder FOLDER    where data/ and runs/ go (default: the repository)
  --attention LIST   trains a model with each, as "goat rope none" (default: "$attentions")
  OPTIONS            go to every training run, as --device cuda or --set train.micro_batch=8
TEXT
}

say() { printf '\n== %s\n' "$*"; }
fail() { # fail CODE MESSAGE
  echo "$script: $2" >&2
  exit "$1"
}

parse() {
  while (($#)); do
    case $1 in
      -h | --help) usage && exit 0 ;;
      --small) is_small=yes && shift ;;
      --folder | --attention)
        [[ -n ${2:-} ]] || fail 2 "$1 needs a value (see --help)"
        if [[ $1 == --folder ]]; then folder=$2; else attentions=$2; fi
        shift 2
        ;;
      *) trainer=("$@") && break ;;
    esac
  done
  [[ -n $folder || -z $is_small ]] || folder=$root/build/small
  folder=${folder:-$root}
}

# What needs no data is checked before anything is downloaded: this here, and the trainer's options by
# "is_check=yes runs".
check() {
  [[ -x $root/train_gpt_goat ]] || fail 1 "there is no train_gpt_goat yet: run make (for a GPU: make CUDA=ON)"
  [[ -x $python ]] || fail 1 "there is no Python environment yet: run scripts/setup.sh test"
  mkdir -p "$folder" && cd "$folder"
  local free taken
  free=$(($(df --output=avail -k . | tail -n 1) / 1000000))
  # shellcheck disable=SC2086  # patterns
  taken=$(($({ du -skc $places 2>/dev/null || true; } | awk 'END {print $1 + 0}') / 1000000))
  ((free + taken >= space)) || [[ -n $is_small ]] ||
    fail 1 "$folder has $free GB free, and this takes $((space - taken)) GB: free some, or choose another --folder"
}

# prepare FOLDER SOURCE OPTIONS...: data/FOLDER. An interrupted preparation goes on.
prepare() {
  local out=data/$1
  shift
  if [[ -e $out/meta.json ]]; then
    say "$out is there"
    return
  fi
  say "preparing $out"
  "$python" "$root/data/prepare.py" "$@" --out "$out"
}

# train RUN PRESET OPTIONS...: from the start, or from the newest checkpoint, or not at all if it is complete.
train() {
  local run=$1 preset=$2
  if [[ -e $run/summary.json ]]; then
    say "$run is trained"
  elif [[ -e $run/config.toml ]]; then
    say "training $run from its newest checkpoint, or from its start if it has none"
    "$root/train_gpt_goat" --resume --out "$run" "${trainer[@]}"
  else
    say "training $run"
    "$root/train_gpt_goat" --config "$preset" --out "$run" "${@:3}" "${settings[@]}" "${trainer[@]}"
  fi
}

# evaluate RUN LENGTHS OPTIONS...: RUN/eval.json
evaluate() {
  local run=$1 lengths=$2 device=()
  if [[ $run/eval.json -nt $run/summary.json ]]; then
    say "$run is evaluated"
    return
  fi
  say "evaluating $run"
  for ((i = 0; i < ${#trainer[@]}; ++i)); do
    case ${trainer[i]} in
      --device) device=(--device "${trainer[i + 1]}") ;;
      --device=*) device=("${trainer[i]}") ;;
    esac
  done
  "$root/train_gpt_goat" eval --checkpoint "$run" --lengths "$lengths" --json "$run/eval.json" "${@:3}" "${device[@]}"
}

# draw FIGURES RUN...: losses and evaluations of all runs side by side in FIGURES, and each run's prior
draw() {
  local figures=$1
  shift
  say "drawing"
  "$python" "$root/scripts/plot.py" loss "$@" --out "$figures/loss.png"
  local kind run
  for kind in $by_length; do
    "$python" "$root/scripts/plot.py" "$kind" "${@/%//eval.json}" --out "$figures/$kind.png"
  done
  for run in "$@"; do
    if grep -q '^attention = "goat["+]' "$run/config.toml"; then "$python" "$root/scripts/plot.py" prior "$run"; fi
  done
}

# run_of PRESET ATTENTION: runs/PRESET for goat, runs/PRESET_rope beside it
run_of() {
  if [[ $2 == goat ]]; then echo "runs/$1"; else echo "runs/$1_$2"; fi
}

# runs PRESET LENGTHS OPTIONS...: trains, evaluates and draws a model for each attention. OPTIONS go to the
# evaluation.
runs() {
  local preset=$1 lengths=$2 all=()
  for attention in $attentions; do
    if [[ -n $is_check ]]; then
      "$root/train_gpt_goat" --config "$preset" --set "model.attention=$attention" "${settings[@]}" "${trainer[@]}" \
        --print-config >/dev/null
      continue
    fi
    local run
    run=$(run_of "$preset" "$attention")
    train "$run" "$preset" --set "model.attention=$attention"
    evaluate "$run" "$lengths" "${@:3}"
    all+=("$run")
  done
  [[ -n $is_check ]] || draw "runs/${preset}_figures" "${all[@]}"
}

# lengths LIST: the list, or that of the tiny model
lengths() {
  if [[ -n $is_small ]]; then echo "$small_lengths"; else echo "$1"; fi
}

main() {
  parse "$@"
  check
  [[ -z $is_small ]] || settings=("${small[@]}")
  is_check=yes experiment
  if [[ -n $is_small ]]; then
    "$python" "$root/scripts/small_data.py" "$files" >/dev/null
  fi
  prepare_data
  experiment
}
