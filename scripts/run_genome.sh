#!/usr/bin/env bash
about="Downloads the human genome (hg38, 1 GB), cuts it into sequences of 6,000 bases, trains the preset
genome_25m on crops of 1,024, evaluates it at 1,024 to 5,999 bases, lets it continue pieces of the genome, and
draws losses, perplexities, the prior and these completions.
GENOME=FILE.fa.gz takes a file that is there; PRESET=genome_125m trains the larger model."
space=12
places="data/hg38.fa.gz* data/genome runs/genome_*"
# shellcheck source=scripts/experiment.sh
source "$(dirname "$0")/experiment.sh"
url=https://hgdownload.soe.ucsc.edu/goldenPath/hg38/bigZips/hg38.fa.gz
genome=${GENOME:+$(realpath "$GENOME")}
small=(--set model.layers=2 --set model.heads=2 --set model.width=32 --set data.seq_len=64 "${small_training[@]}")

# Fetches the genome to data/hg38.fa.gz; an interrupted download goes on.
download() {
  say "downloading $url"
  mkdir -p data
  curl --fail --location --continue-at - --output data/hg38.fa.gz.partial "$url" ||
    fail 1 "the download ended early; start again to go on, or give a file: GENOME=FILE.fa.gz $script"
  mv data/hg38.fa.gz.partial data/hg38.fa.gz
}
prepare_data() {
  if [[ -n $is_small ]]; then
    genome=$files/genome.fa.gz
  elif [[ -z $genome ]]; then
    genome=data/hg38.fa.gz
    [[ -e $genome || -e data/genome/meta.json ]] || download
  fi
  prepare genome fasta --input "$genome"
}
# continue_genome RUN: RUN/completions.json, and its figure
continue_genome() {
  if [[ $1/completions.json -nt $1/eval.json ]]; then
    say "$1 has continued the genome"
  else
    say "continuing the genome with $1"
    "$python" "$root/scripts/genome_completions.py" "$1"
  fi
  "$python" "$root/scripts/plot.py" genome "$1"
}
experiment() {
  local preset=${PRESET:-genome_25m}
  runs "$preset" "$(lengths 1024,2048,4096,5999)"
  [[ -z $is_check ]] || return 0
  for attention in $attentions; do continue_genome "$(run_of "$preset" "$attention")"; done
}

main "$@"
