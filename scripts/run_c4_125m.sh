#!/usr/bin/env bash
about="Tokenizes 4.1e9 tokens of C4 from the hub, trains the published 125M model (preset c4_125m), evaluates it at
2,048 to 32,768 tokens by both protocols, and draws losses, perplexities and the prior."
space=20
places="data/c4 runs/c4_125m*"
# shellcheck source=scripts/experiment.sh
source "$(dirname "$0")/experiment.sh"
small=("${small_text[@]}")

prepare_data() {
  if [[ -n $is_small ]]; then
    prepare c4 c4 --input "$files/c4-train.*.json.gz" --val-input "$files/c4-validation.*.json.gz" "${small_tokens[@]}"
  else
    prepare c4 c4
  fi
}
experiment() { runs c4_125m "$(lengths 2048,4096,8192,16384,32768)" --protocol both; }

main "$@"
