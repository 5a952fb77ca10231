#!/usr/bin/env bash
# Checks and measures everything on a GPU, writes one JSON file and prints a summary:
#   dev/gpu_check.sh [PART] [--part train|kernels|ranks|extrapolate] [--bin DIR] [--data DIR] [--out FILE] [--tag NAME] [--device cuda|simt]
# PART alone is --part PART.
# Part train, sized for 4 minutes on an H100: speed and memory of c4_125m and fineweb_1b on random tokens; runs that must be the same bit for bit; losses
# beside those of the simulated GPU and the CPU; a profile and its gaps, beside the step that the kernels' times predict.
# Part kernels, the same: the kernel tests on the device, compute-sanitizer over the attention kernels, every kernel against the limits of the
# hardware, PyTorch's attention beside ours (where there is a torch).
# Part ranks, sized for 3 minutes: NCCL with one rank, with two ranks on one GPU by two ways, and with a rank on each GPU found. The contract tests of
# the communicator; 20 steps, the same bit for bit as one rank with as many leaves; a rank that is killed; the speed of all GPUs. What this machine or its
# NCCL cannot do is reported as not run, with the reason, and fails nothing. NCCL is $GOAT_NCCL, or the libnccl.so.2 of the machine or of a Python package.
# Part extrapolate, at most 6 minutes: c4_125m on real text with goat and with rope, two minutes of training each by the same schedule on the same
# tokens, as many as the slower has time for; then the perplexity of the same tokens at 2k to 32k. What comes out is a finding. It fails if a loss is not
# finite, if a run learns nothing, or ends with an error. The text is --data DIR, or what dev/gpu_package.sh --data packed: train_*.bin and val_*.bin of
# `data/prepare.py text|jsonl --tokenizer gpt2 --max-tokens 30000000 --out DIR ...`, at least 65,537 tokens of them for validation. Without, it is not run.
# Without --part it does all. Without --bin it builds first (needs what scripts/setup.sh installs); with it, it takes the binaries that
# dev/gpu_package.sh packed elsewhere. Exits with 0 only if every section passed.
# Needs on the machine: an NVIDIA driver, libcublasLt.so.13 (CUDA toolkit or PyTorch), python3 (3.11 or later); compute-sanitizer for its part.
# --device simt rehearses parts train, ranks and extrapolate without a GPU, on tiny models: --bin is then any folder with a train_gpt_goat of
# `make SIMT=ON`; with a nccl_ranks beside it the contract tests run too.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
usage="usage: dev/gpu_check.sh [PART] [--part train|kernels|ranks|extrapolate] [--bin DIR] [--data DIR] [--out FILE] [--tag NAME]"
usage+=" [--device cuda|simt]"
# Each part is a function part_NAME that runs sections, and needs these programs.
parts=(train kernels ranks extrapolate)
declare -A programs=([train]=train_gpt_goat [kernels]="kernel_tests gpu_kernels" [ranks]="train_gpt_goat nccl_ranks" [extrapolate]=train_gpt_goat)
fail() { echo "gpu_check: $*" >&2 && exit 2; }
part="" bin="" data="" out="" tag="" device=cuda
command="dev/gpu_check.sh${*:+ $*}"
if (($#)) && [[ $1 != -* ]]; then set -- --part "$@"; fi
while (($#)); do
  [[ $1 =~ ^--(part|bin|data|out|tag|device)$ ]] || fail "unknown argument '$1'; $usage"
  (($# > 1)) || fail "$1 needs a value; $usage"
  declare "${1#--}=$2"
  shift 2
done
[[ " ${parts[*]} " == *" ${part:-train} "* ]] || fail "--part $part: ${parts[*]}"
[[ -z $part ]] || parts=("$part")
[[ -z $data || " ${parts[*]} " == *" extrapolate "* ]] || fail "--data $data: is for part extrapolate; part $part takes none"

# The sizes of part train. `within` is how far memory may be from its plan, as a part of it; the simulated GPU's is that of the process, which holds
# more than the device does.
case $device in
  cuda)
    length=2048 shard_tokens=2000000
    c4_size=() c4_micro=16 c4_steps=20
    fineweb_size=() fineweb_micro=8 fineweb_steps=10
    repeat_micro=2 repeat_steps=40 stop_after=5
    losses_steps=200 losses_simt_steps=100
    # Small enough for two ranks that share a GPU and exchange over sockets.
    ranks_size=(--set model.layers=4 --set model.heads=4 --set model.width=256) ranks_steps=20 kill_after=5 kill_within=15 speed_steps=12
    extrapolate_size=() extrapolate_batch=16 extrapolate_micro=16 probe_steps=40
    extrapolate_lengths=2048,4096,8192,16384,32768 extrapolate_seconds=105 evaluate_seconds=12
    within=0.03
    ;;
  simt)
    length=32 shard_tokens=4000
    c4_size=(--set model.layers=2 --set model.heads=2 --set model.width=32) c4_micro=1 c4_steps=4
    fineweb_size=(--set model.layers=2 --set model.heads=2 --set model.width=32 --set model.ff_width=48) fineweb_micro=1 fineweb_steps=4
    repeat_micro=1 repeat_steps=8 stop_after=2
    losses_steps=12 losses_simt_steps=6
    ranks_size=(--set model.vocab=2048 --set model.width=48) ranks_steps=20 kill_after=3 kill_within=5
    extrapolate_size=(--set model.layers=1 --set model.heads=2 --set model.width=32) extrapolate_batch=1 extrapolate_micro=1 probe_steps=5
    extrapolate_lengths=32,64,128,256,512 extrapolate_seconds=6 evaluate_seconds=2
    programs[ranks]=train_gpt_goat
    within=1
    ;;
  *) fail "--device $device: cuda or simt" ;;
esac
extrapolate_longest=${extrapolate_lengths##*,}
makes_text="data/prepare.py text --tokenizer gpt2 --max-tokens 30000000 --out FOLDER FILE... makes them"
# Limits of mean absolute differences between losses: of bf16 on two devices, and of bf16 and fp32, which the simulated GPU and the CPU have at 0.0009.
bf16_within=0.002 fp32_within=0.003

if [[ -n $data ]]; then python3 dev/gpu_extrapolate.py text "$data" --longest "$extrapolate_longest" >/dev/null || exit 2; fi
if [[ $device == simt ]]; then
  [[ -n $bin ]] || fail "--device simt needs --bin DIR, a folder with a train_gpt_goat of \`make SIMT=ON\`"
  [[ ${#parts[@]} == 1 && $part != kernels ]] || fail "--device simt rehearses --part train, ranks or extrapolate; the kernels run there in the tests"
  name=simt gpu="none: rehearsed on the simulated GPU"
  out=${out:-${TMPDIR:-/tmp}/gpu_check_simt$tag.json}
else
  nvidia-smi -L || { echo "gpu_check: no GPU answers" >&2 && exit 1; }
  gpu=$(nvidia-smi --query-gpu=name,driver_version,clocks.max.sm,power.limit --format=csv,noheader | head -1)
  name=$(tr -cs 'A-Za-z0-9' _ <<<"${gpu%%,*}" | sed 's/_*$//')
  out=${out:-dev/results/gpu_$name${part:+_$part}$tag.json}
fi
if [[ -z $bin ]]; then
  ARCHITECTURES=${ARCHITECTURES:-AUTO} dev/gpu_package.sh || exit 1
  bin=build-gpu/bin
fi
bin=$(cd "$bin" && pwd) || exit 1
[[ -n $data || ! -d $bin/data ]] || data=$bin/data
for part in "${parts[@]}"; do
  for program in ${programs[$part]}; do
    [[ -f $bin/$program ]] || fail "there is no $program in $bin"
    [[ -x $bin/$program ]] || chmod +x "$bin/$program"
  done
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# libcublasLt and NCCL lie beside the toolkit or inside PyTorch's packages.
folder_of() {  # folder_of FILE
  local folder
  for folder in /usr/local/cuda*/lib64 $(python3 -c 'import nvidia, os; print(*[os.path.join(p, d, "lib") for p in nvidia.__path__ for d in os.listdir(p)])' 2>/dev/null); do
    [[ -e $folder/$1 ]] && echo "$folder" && return
  done
}
export LD_LIBRARY_PATH=$bin/lib:$(folder_of libcublasLt.so.13):$(folder_of libnccl.so.2):${LD_LIBRARY_PATH:-} GOAT_TEST_DEVICES=$device

# section NAME SECONDS COMMAND...: runs it, keeps its output, time and exit status, and goes on. It is not run if a section named in $needs was not.
section() {
  local name=$1 limit=$2 start status need reason
  shift 2
  for need in ${needs:-}; do
    if [[ -e $work/$need.not_run ]]; then not_run "$name" "$need was not run" && return; fi
  done
  start=$(date +%s.%N)
  timeout --kill-after=10 "$limit" "$@" >"$work/$name.out" 2>"$work/$name.err" </dev/null
  status=$?
  if ((status == 77)) && reason=$(grep '^gpu_ranks: ' "$work/$name.err" | tail -n 1); then  # it cannot be done here
    not_run "$name" "${reason#gpu_ranks: }" && return
  fi
  ((status != 124)) || echo "gpu_check: stopped after its $limit s" >>"$work/$name.err"
  kept "$name" $status "$(awk -v s="$start" -v e="$(date +%s.%N)" 'BEGIN {printf "%.1f", e - s}')"
  echo "== $name: exit $status, $(cat "$work/$name.seconds") s"
  ((status == 0)) || tail -n 6 "$work/$name.out" "$work/$name.err"
}
passed() { [[ $(cat "$work/$1.status") == 0 && ! -e $work/$1.not_run ]]; }  # passed NAME
kept() {  # kept NAME STATUS SECONDS
  echo "$2" >"$work/$1.status"
  echo "$3" >"$work/$1.seconds"
  echo "$1" >>"$work/sections"
}
not_run() {  # not_run NAME REASON: a section that this machine cannot run
  echo "== $1: not run: $2"
  : >"$work/$1.out"
  : >"$work/$1.err"
  echo "$2" >"$work/$1.not_run"
  kept "$1" 0 0
}

# train NAME SECONDS [OPTIONS OF dev/gpu_run.py...] -- WORDS...: a section that trains in the folder $work/NAME, started by the words of `launcher`.
launcher=()
train() {
  local name=$1 limit=$2 options=()
  shift 2
  while [[ $1 != -- ]]; do options+=("$1") && shift; done
  section "$name" "$limit" python3 dev/gpu_run.py --out "$work/$name" "${options[@]}" -- "${launcher[@]}" "$bin/train_gpt_goat" "${@:2}"
}
compare() { section "$1" 60 python3 dev/gpu_compare.py "${@:2}"; }  # compare NAME WORDS...

bf16=(--set model.precision=bf16 --set eval.tokens=0)
on_random_tokens=(--device "$device" "${bf16[@]}" --set "data.train=$work/shards/train_*.bin" --set data.val= --set "data.seq_len=$length")
c4=(--config c4_125m "${on_random_tokens[@]}" "${c4_size[@]}")
fineweb=(--config fineweb_1b "${on_random_tokens[@]}" "${fineweb_size[@]}")
among_ranks=("${c4[@]}" "${ranks_size[@]}")
[[ $device == cuda ]] || among_ranks=(--config copy_mixture --device simt "${bf16[@]}" "${ranks_size[@]}")
two_micro_batches() { micro_batches=(--set "train.micro_batch=$1" --set "train.batch=$((2 * $1))"); }

recompute_that_fits() {  # recompute_that_fits WORDS...: the last one if none does; the run then says so
  local recompute
  for recompute in none gelu block; do
    [[ $("$bin/train_gpt_goat" "$@" --set "model.recompute=$recompute" --dry-run) == *'memory: too little'* ]] || break
  done
  echo "$recompute"
}

# The simulated GPU is slow: it may stop earlier than the others.
losses_beside_other_devices() {
  local words=(--config copy_mixture --set train.batch=8 --set "train.steps=$losses_steps" --set "train.warmup=$((losses_steps / 10))")
  train losses 30 -- "${words[@]}" "${bf16[@]}" --device "$device"
  train losses_cpu 30 -- "${words[@]}" "${bf16[@]}" --device cpu --set model.precision=fp32
  train losses_simt 60 --stop-after "$losses_simt_steps" -- "${words[@]}" "${bf16[@]}" --device simt
  compare losses_beside_simt losses --steps "$losses_simt_steps" --within "$bf16_within" "$work"/{losses,losses_simt}
  compare losses_beside_cpu losses --steps "$losses_steps" --within "$fp32_within" "$work"/{losses,losses_cpu}
}

# Killed after their steps, so that no time goes into checkpoints. The context's share of the memory is seen at the small model of the losses.
speed_and_memory() {
  local micro_batches recompute runs=(c4_125m c4_125m_no_graph c4_125m_library fineweb_1b fineweb_1b_no_graph)
  two_micro_batches "$c4_micro"
  train c4_125m 40 --kill-after "$c4_steps" -- "${c4[@]}" "${micro_batches[@]}" --set train.cuda_graph=on
  train c4_125m_no_graph 40 --kill-after "$c4_steps" -- "${c4[@]}" "${micro_batches[@]}" --set train.cuda_graph=off
  train c4_125m_library 40 --kill-after "$c4_steps" -- "${c4[@]}" "${micro_batches[@]}" --set train.cuda_graph=on --set model.epilogue=library
  two_micro_batches "$fineweb_micro"
  recompute=$(recompute_that_fits "${fineweb[@]}" "${micro_batches[@]}")
  micro_batches+=(--set "model.recompute=$recompute")
  train fineweb_1b 60 --kill-after "$fineweb_steps" -- "${fineweb[@]}" "${micro_batches[@]}" --set train.cuda_graph=on
  train fineweb_1b_no_graph 60 --kill-after "$fineweb_steps" -- "${fineweb[@]}" "${micro_batches[@]}" --set train.cuda_graph=off
  compare memory memory --context "$work/losses" --within "$within" "${runs[@]/#/$work/}"
}

# A run that is resumed begins in another folder, as after a move.
bit_for_bit() {
  local micro_batches words
  two_micro_batches "$repeat_micro"
  words=("${c4[@]}" "${micro_batches[@]}" --set "train.steps=$repeat_steps" --set train.warmup=2)
  train repeat 40 -- "${words[@]}" --set train.cuda_graph=on
  train repeat_again 40 -- "${words[@]}" --set train.cuda_graph=on
  compare same_again same "$work"/{repeat,repeat_again}
  train repeat_no_graph 40 -- "${words[@]}" --set train.cuda_graph=off
  compare same_without_graph same "$work"/{repeat,repeat_no_graph}
  rm -rf "$work"/repeat_{again,no_graph}
  train stopped 40 --stop-after "$stop_after" -- "${words[@]}" --set train.cuda_graph=on
  [[ ! -d $work/stopped ]] || mv "$work/stopped" "$work/resumed"
  train resumed 40 -- --device "$device" --resume
  compare same_resumed same "$work"/{repeat,resumed}
  rm -rf "$work"/{repeat,resumed}
}

profile_and_prediction() {
  local micro_batches
  two_micro_batches "$c4_micro"
  section profile 40 "$bin/train_gpt_goat" "${c4[@]}" "${micro_batches[@]}" --out "$work/profiled" --profile 2
  compare gaps gaps "$work/profiled"
  if [[ $device == cuda ]]; then  # kernels are timed on GPUs, at c4_125m's own size
    section prediction 20 python3 dev/predict_step.py --measured "$work/profiled/profile/operations.json"
  fi
}

random_shards() {
  [[ -d $work/shards ]] || section shards 30 python3 dev/random_shards.py "$work/shards" --tokens "$shard_tokens"
}

part_train() {
  random_shards
  losses_beside_other_devices
  speed_and_memory
  bit_for_bit
  profile_and_prediction
}

part_kernels() {
  section tests 150 "$bin/kernel_tests"
  section kernels 100 "$bin/gpu_kernels" --device cuda
  if python3 -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then section torch 70 python3 dev/bench/gpu_torch_attention.py; fi
  if command -v compute-sanitizer >/dev/null; then
    export GOAT_TEST_REDUCED=1
    section memcheck 70 compute-sanitizer --tool memcheck --error-exitcode 9 "$bin/kernel_tests" -# "[#test_attention_bf16],[#test_attention],[#test_attention_decode]"
    section racecheck 70 compute-sanitizer --tool racecheck --error-exitcode 9 "$bin/kernel_tests" -# "[#test_attention_bf16]"
    unset GOAT_TEST_REDUCED
  fi
}

as_ranks() { launcher=(python3 dev/gpu_ranks.py run --ranks "$1" --way "$2" --); }  # as_ranks RANKS WAY: starts a command as so many

contracts() {  # contracts RANKS WAY: the contract tests of the communicator
  local launcher
  as_ranks "$1" "$2"
  if [[ -x $bin/nccl_ranks ]]; then
    needs=nccl section "contracts_$1_$2" 60 "${launcher[@]}" "$bin/nccl_ranks" --device "$device"
  else
    not_run "contracts_$1_$2" "there is no nccl_ranks in $bin"
  fi
}

# leaves_of LEAVES: words of a run whose leaves have two micro-batches each
leaves_of() {
  leaves=("${among_ranks[@]}" --set "train.micro_batch=$repeat_micro" --set "train.batch=$((2 * $1 * repeat_micro))")
  leaves+=(--set "train.steps=$ranks_steps" --set train.warmup=2 --set "distributed.leaves=$1")
}

ranks_and_one() {  # ranks_and_one RANKS WAY: as many ranks as leaves, beside one rank with these leaves
  local leaves launcher=()
  leaves_of "$1"
  [[ -d $work/alone_$1 ]] || train "alone_$1" 60 -- "${leaves[@]}"
  as_ranks "$1" "$2"
  needs=nccl train "ranks_$1_$2" 90 -- "${leaves[@]}"
  needs="ranks_$1_$2" compare "same_$1_$2" same "$work/alone_$1" "$work/ranks_$1_$2"
  rm -rf "$work/ranks_$1_$2"
}

killed_rank() {  # killed_rank WAY...: rank 1 of two is killed in the middle of a run, by the first way that has run here
  local way leaves
  leaves_of 2
  for way in "$@"; do
    [[ $way == gpus || ! -e $work/ranks_2_$way.not_run ]] || continue
    needs=nccl section killed_rank 60 python3 dev/gpu_ranks.py kill --ranks 2 --way "$way" --out "$work/killed" --after "$kill_after" --within "$kill_within" -- \
      "$bin/train_gpt_goat" "${leaves[@]}" --set train.steps=1000000 --out "$work/killed"
    return
  done
  not_run killed_rank "two ranks have not run by any way"
}

# With the presets' own batches, as dev/scaling_model.py has them beside its prediction.
speed_of_all_gpus() {
  local launcher words
  as_ranks "$gpus" gpus
  needs=nccl train "c4_125m_${gpus}_gpus" 60 --kill-after "$speed_steps" -- "${c4[@]}" --set "train.micro_batch=$c4_micro"
  words=("${fineweb[@]}" --set "train.micro_batch=$fineweb_micro")
  words+=(--set "model.recompute=$(recompute_that_fits "${words[@]}" --ranks "$gpus")")
  needs=nccl train "fineweb_1b_${gpus}_gpus" 90 --kill-after "$speed_steps" -- "${words[@]}"
}

gpus_here() {
  if [[ -n ${CUDA_VISIBLE_DEVICES:-} ]]; then tr , '\n' <<<"$CUDA_VISIBLE_DEVICES"; else nvidia-smi -L; fi | wc -l
}

part_ranks() {
  local way ways=(hosts shared) gpus=1 kills
  if [[ $device == cuda ]]; then
    random_shards
    gpus=$(gpus_here)
    section nccl 20 python3 dev/gpu_ranks.py nccl
  else
    ways=(gpus)
  fi
  kills=("${ways[@]}")
  contracts 1 gpus
  for way in "${ways[@]}"; do
    contracts 2 "$way"
    ranks_and_one 2 "$way"
  done
  if ((gpus > 1)); then
    contracts "$gpus" gpus
    ranks_and_one "$gpus" gpus
    speed_of_all_gpus
    kills=(gpus)
  else
    not_run all_gpus "there is one GPU"
  fi
  killed_rank "${kills[@]}"
}

# plan_words train|eval: what the plan adds to the words of the program, one a line
plan_words() { python3 dev/gpu_extrapolate.py words "$work/extrapolate_plan.out" "$1"; }

train_and_evaluate() {  # train_and_evaluate ATTENTION WORDS...: in the folder extrapolate_ATTENTION, as is planned
  local name=extrapolate_$1 planned
  mapfile -t planned < <(plan_words train)
  train "$name" 123 -- "${@:2}" --set "model.attention=$1" "${planned[@]}"
  if passed "$name"; then
    mapfile -t planned < <(plan_words eval)
    section "${name}_eval" 25 "$bin/train_gpt_goat" eval --checkpoint "$work/$name" --device "$device" "${planned[@]}" --json "$work/$name/eval.json"
  else
    not_run "${name}_eval" "$name failed"
  fi
  rm -rf "$work/$name/checkpoints"
}

# The limits add up to 359 s: 5 of the text, 25 of each speed, 4 of the plan, 123 of each training, of which extrapolate_seconds go into steps, 25 of each
# evaluation, 4 of the table. The schedule is that of a small batch: c4_125m's own warms up for longer than this lasts.
part_extrapolate() {
  local attention words both=("$work"/extrapolate_{goat,rope}) speeds=("$work"/extrapolate_speed_{goat,rope})
  if [[ -z $data ]]; then
    not_run extrapolate_text "no text: --data FOLDER names its shards, here or of dev/gpu_package.sh; $makes_text"
    return
  fi
  words=(--config c4_125m --device "$device" "${bf16[@]}" "${extrapolate_size[@]}" --set "data.train=$data/train_*.bin" --set "data.val=$data/val_*.bin"
    --set "data.seq_len=$length" --set "train.batch=$extrapolate_batch" --set "train.micro_batch=$extrapolate_micro"
    --set train.lr=6e-4 --set train.min_lr=6e-5 --set checkpoint.interval=0 --set checkpoint.minutes=0)
  section extrapolate_text 5 python3 dev/gpu_extrapolate.py text "$data" --longest "$extrapolate_longest"
  passed extrapolate_text || { not_run extrapolation "extrapolate_text failed" && return; }
  for attention in goat rope; do
    train "extrapolate_speed_$attention" 25 --kill-after "$probe_steps" -- "${words[@]}" --set "model.attention=$attention"
  done
  section extrapolate_plan 4 python3 dev/gpu_extrapolate.py plan "$work/extrapolate_text.out" "${speeds[@]/%/.json}" --seconds "$extrapolate_seconds" \
    --step-tokens $((extrapolate_batch * length)) --lengths "$extrapolate_lengths" --eval-seconds "$evaluate_seconds"
  passed extrapolate_plan || { not_run extrapolation "extrapolate_plan failed" && return; }
  for attention in goat rope; do train_and_evaluate "$attention" "${words[@]}"; done
  section extrapolation 4 python3 dev/gpu_extrapolate.py table "$work/extrapolate_plan.out" "${both[@]}"
}

for part in "${parts[@]}"; do "part_$part"; done

commit=$(cat "$bin/commit" 2>/dev/null || git describe --always --dirty --abbrev=12)
python3 dev/gpu_check_report.py collect "$work" "$out" --commit "$commit" --gpu "$gpu" --command "$command"
