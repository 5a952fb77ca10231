#!/usr/bin/env bash
about="Trains models with goat and with rope on the built-in tasks: a passkey in a log (preset passkey, evaluated at
1,024 to 16,384 characters) and a needle in a haystack (preset niah, 512 to 16,384 characters at five depths). Draws
losses, accuracies and priors."
space=8
places="runs/passkey* runs/niah*"
attentions="goat rope"
by_length="eval retrieval"
# shellcheck source=scripts/experiment.sh
source "$(dirname "$0")/experiment.sh"
small=(--set model.layers=1 --set model.heads=2 --set model.width=64 --set data.seq_len=128 "${small_training[@]}")
small_lengths=128,256

prepare_data() { :; } # the tasks need none
experiment() {
  local samples=(${is_small:+--samples 3})
  runs passkey "$(lengths 1024,2048,4096,8192,16384)" "${samples[@]}"
  runs niah "$(lengths 512,1024,2048,4096,8192,16384)" "${samples[@]}"
}

main "$@"
