#!/usr/bin/env bash
about="Tokenizes 3.25e9 tokens of FineWeb from the hub, trains the published 1.2B Llama-style model (preset
fineweb_1b), evaluates it at 2,048 to 32,768 tokens by both protocols, and draws losses, perplexities and the
prior."
space=90
places="data/fineweb runs/fineweb_1b*"
# shellcheck source=scripts/experiment.sh
source "$(dirname "$0")/experiment.sh"
small=("${small_text[@]}" --set model.ff_width=96)

prepare_data() {
  if [[ -n $is_small ]]; then
    prepare fineweb fineweb --input "$files/*.parquet" --val-documents 300 "${small_tokens[@]}"
  else
    prepare fineweb fineweb
  fi
}
experiment() { runs fineweb_1b "$(lengths 2048,4096,8192,16384,32768)" --protocol both; }

main "$@"
