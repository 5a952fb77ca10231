#!/usr/bin/env python3
"""Stands in for train_gpt_goat, nccl_ranks and nvidia-smi where a test wants dev/gpu_check.sh to believe in
GPUs.

Called as nvidia-smi it tells the memory of one GPU, and of $PRETENDED_GPUS that they are there. Called as
train_gpt_goat it fills that memory and leaves what a run leaves: losses that follow from the seed and the
step alone; its perplexities follow from the length and the attention. As one of several ranks, which
nccl_ranks is too, it takes a GPU of its own or a way to share one, as NCCL does; rank 0 leaves the run and
ends when another rank does. $PRETENDED/planted.json says what goes wrong: {name of the run's folder, with
_eval for its evaluation, or contracts: trouble}.
"""

import json
import os
import signal
import struct
import sys
import time
import tomllib
from pathlib import Path

HOME = Path(os.environ["PRETENDED"])
GPUS = int(os.environ.get("PRETENDED_GPUS", "1"))
CONTEXT, IDLE = 500, 300  # MiB
RANK, RANKS = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
PLANNED = {"copy_mixture": 100, "c4_125m": 20000, "fineweb_1b": 70000}  # MiB
SPEEDS = {"goat": 400e3, "rope": 500e3}  # tokens a second
DEFAULTS = {
    "model": {"attention": "goat", "precision": "auto", "recompute": "none", "epilogue": "own"},
    "train": {"batch": 128, "micro_batch": 0, "cuda_graph": "auto", "steps": 1000, "seed": 1},
}


def planted(run):
    file = HOME / "planted.json"
    return json.loads(file.read_text()).get(run.name) if file.exists() else None


def nvidia_smi(words):
    if "-L" in words:
        for gpu in range(GPUS):
            print(f"GPU {gpu}: NVIDIA H100 80GB HBM3 (UUID: GPU-{gpu})")
    elif "--query-gpu=index,memory.used" in words:
        alive = [file for file in (HOME / "in_use").glob("*") if Path("/proc", file.name).exists()]
        print(f"0, {IDLE + sum(int(file.read_text() or 0) for file in alive)}")
        for file in alive:
            (HOME / "told" / file.name).touch()
    else:
        print("NVIDIA H100 80GB HBM3, 580.00, 1980 MHz, 700.00 W")


def fill_memory(mebibytes):
    """Takes that much of the GPU, and waits until nvidia-smi has told it."""
    name = str(os.getpid())
    for folder in ("in_use", "told"):
        (HOME / folder).mkdir(exist_ok=True)
    (HOME / "told" / name).unlink(missing_ok=True)
    (HOME / "in_use" / name).write_text(str(mebibytes))
    while not (HOME / "told" / name).exists():
        time.sleep(0.005)


def config_of(words):
    config = {section: dict(keys) for section, keys in DEFAULTS.items()}
    for word, setting in zip(words, words[1:]):
        if word == "--set":
            (section, key), value = setting.split("=")[0].split("."), setting.split("=", 1)[1]
            kept = config.setdefault(section, {})
            kept[key] = type(kept[key])(value) if key in kept else value
    return config


def toml(config):
    sections = [(name, keys) for name, keys in config.items() if isinstance(keys, dict)]
    return "\n".join(
        f"[{name}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items())
        for name, keys in sections
    )


def safetensors(values):
    header = {name: {"dtype": "F32", "shape": [1], "data_offsets": [4 * i, 4 * i + 4]}
              for i, name in enumerate(values)}  # fmt: skip
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + struct.pack(f"<{len(values)}f", *values.values())


def dry_run(preset, config):
    too_little = preset == "fineweb_1b" and config["model"]["recompute"] == "none"
    print("memory: too little. This fits: ..." if too_little else "memory: there is enough")


def profile(out, preset, config):
    """Two steps of 20 microseconds: 4 are idle in each, and 3 between them."""
    (out / "profile").mkdir(parents=True)
    events = [
        {"name": "thread_name", "ph": "M", "pid": 1, "tid": row, "args": {"name": name}}
        for row, name in ((1, "device: H100"), (2, "host calls"))
    ]
    for step in range(2):
        events.append({"name": f"step {step + 1}", "ph": "X", "tid": 2, "ts": 20.0 * step, "dur": 18.0})
        for name, start, length in (
            ("embedding_forward", 0, 4),
            ("linear_forward head", 5, 6),
            ("adamw", 14, 3),
        ):
            times = {"ts": 20.0 * step + start, "dur": float(length)}
            events.append({"name": name, "ph": "X", "tid": 1} | times)
    (out / "profile/trace.json").write_text(json.dumps({"traceEvents": events}))
    micro_batches = config["train"]["batch"] // config["train"]["micro_batch"]
    operations = {
        "micro_batches": micro_batches,
        "tokens_per_step": config["train"]["batch"] * 2048,
        "step_seconds": 2e-5,
        "device_seconds": 1.3e-5,
        "operations": [{"name": "attention_forward", "calls": 1, "seconds": 1.3e-5}],
    }
    (out / "profile/operations.json").write_text(json.dumps(operations))
    (out / "profile/config.toml").write_text(
        "[model]\nlayers = 12\nheads = 12\nwidth = 768\nvocab = 50257\n[prior]\npos_rank = 2\n"
        "[data]\nseq_len = 2048\n[train]\nbatch = 128\n"
    )


def loss_of(step, seed, trouble):
    if trouble == "not finite" and step == 3:
        return None
    if trouble == "diverges":
        return 4 + 0.001 * step
    return 4 - 0.001 * step + 0.1 * (seed - 1) + (0.01 if trouble == "other losses" and step > 2 else 0)


def shares_a_gpu(trouble):
    """Ends the program where NCCL would not take two ranks on one GPU."""
    if "GOAT_SHARE_GPU" not in os.environ:
        if RANKS > GPUS:
            sys.exit(f"error: {RANKS} ranks and {GPUS} GPUs")
        return
    ways = [name for name in ("NCCL_HOSTID", "NCCL_MULTI_RANK_GPU_ENABLE") if name in os.environ]
    other_host = os.environ.get("NCCL_HOSTID", "").endswith(str(RANK))
    other_host &= os.environ.get("NCCL_SOCKET_IFNAME") == "lo"
    if trouble == "refused" or len(ways) != 1 or (ways == ["NCCL_HOSTID"] and not other_host):
        print("host:1:1 [0] init.cc:1 NCCL WARN Duplicate GPU detected : rank 0 and rank 1 both on 1000")
        sys.exit("error: NCCL: invalid usage")


def meet(name):
    """Waits for all ranks; returns their process ids."""
    folder = HOME / "ranks" / f"{name}_{os.environ['MASTER_PORT']}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{RANK}.new").write_text(str(os.getpid()))
    (folder / f"{RANK}.new").rename(folder / str(RANK))
    while not all((folder / str(rank)).exists() for rank in range(RANKS)):
        time.sleep(0.005)
    return [int((folder / str(rank)).read_text()) for rank in range(RANKS)]


def lives(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def follow(pids):
    """What a rank other than 0 does until rank 0 has ended."""
    while lives(pids[0]):
        time.sleep(0.005)
    return 0


def end_with(pids, trouble):
    """Rank 0 ends when another rank has."""
    for rank, pid in enumerate(pids):
        if not lives(pid) and trouble != "does not end":
            name = f"rank {rank} (host vm, pid {pid})" if trouble != "nameless" else "a rank"
            sys.exit(f"rank 0 (host vm, pid {os.getpid()}) of {RANKS} ends: {name} has ended")


def nccl_ranks():
    trouble = planted(Path("contracts"))
    shares_a_gpu(trouble)
    meet("contracts")
    if trouble == "broken" and RANK == RANKS - 1:
        sys.exit("all_gather: part 1 holds the bytes of rank 0")
    return 0


def steps_until_stopped(out, preset, config, trouble, pids=()):
    """Trains, and says by which signal it was stopped, or None."""
    stopped = []
    signal.signal(signal.SIGTERM, lambda *_: None if trouble == "deaf" else stopped.append(signal.SIGTERM))
    metrics = out / "metrics.jsonl"
    done = len(metrics.read_text().splitlines()) if metrics.exists() else 0
    for step in range(done + 1, config["train"]["steps"] + 1):
        line = {
            "step": step,
            "tokens": step * config["train"]["batch"] * 2048,
            "loss": loss_of(step, config["train"]["seed"], trouble),
            "grad_norm": 1.0,
            "tokens_per_second": SPEEDS[config["model"]["attention"]],
            "mfu": 0.36,
            "memory_bytes": PLANNED[preset] << 20,
        }
        if step <= 2:
            line |= {"tokens_per_second": 10.0, "mfu": 0.00001}
        with metrics.open("a") as file:
            file.write(json.dumps(line) + "\n")
        end_with(pids, trouble)
        if stopped:
            return stopped[0]
        time.sleep(0.002)
    return None


def train(out, preset, config, device):
    trouble = planted(out)
    if trouble == "breaks":
        sys.exit("error: out of memory on the device")
    pids = []
    if RANKS > 1:
        shares_a_gpu(trouble)
        pids = meet(out.name)
        if RANK:
            return follow(pids)
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.toml").write_text(toml(config))
    (out / "preset").write_text(preset)
    if device == "cuda" and RANKS == 1:
        more = 1.04 if trouble == "more memory" else 1.001
        fill_memory(int(CONTEXT + more * PLANNED[preset]))
    stopped = steps_until_stopped(out, preset, config, trouble, pids)
    step = len((out / "metrics.jsonl").read_text().splitlines())
    folder = out / f"checkpoints/step_{step:08d}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.safetensors").write_bytes(
        safetensors({"embedding.weight": step, "head.weight": 2.0 if trouble == "other model" else 1.0})
    )
    (folder / "optimizer.safetensors").write_bytes(
        safetensors({"m.head.weight": step, "v.head.weight": 2.0 if trouble == "other optimizer" else 1.0})
    )
    return 4 if stopped else 0


def evaluate(value):
    """Perplexities of 50 with goat; with rope, one that grows with the length."""
    run = Path(value["--checkpoint"])
    trouble = planted(run.with_name(f"{run.name}_eval"))
    if trouble == "breaks":
        sys.exit("error: out of memory on the device")
    if not list(run.glob("checkpoints/*/model.safetensors")):
        sys.exit(f"error: {run} has no checkpoint")
    rope = tomllib.loads((run / "config.toml").read_text())["model"]["attention"] == "rope"
    rows = []
    for length in map(int, value["--lengths"].split(",")):
        tokens = int(value["--tokens"]) // length * length
        perplexity = 50 * length / 2048 if rope else 50.0
        rows.append({"length": length, "tokens": tokens, "perplexity": perplexity})
    if trouble == "fewer tokens":
        rows[-1]["tokens"] -= rows[-1]["length"]
    if trouble == "not finite":
        rows[-1]["perplexity"] = None
    Path(value["--json"]).write_text(json.dumps({"results": rows}))
    return 0


def train_gpt_goat(words):
    value = {word: after for word, after in zip(words, words[1:]) if word != "--set"}
    if words[0] == "eval":
        return evaluate(value)
    out, preset, config = Path(value.get("--out", ".")), value.get("--config"), config_of(words)
    if "--dry-run" in words:
        return dry_run(preset, config)
    if "--profile" in words:
        return profile(out, preset, config)
    if "--resume" in words:
        config, preset = tomllib.loads((out / "config.toml").read_text()), (out / "preset").read_text()
    return train(out, preset, config, value["--device"])


if __name__ == "__main__":
    programs = {
        "nvidia-smi": nvidia_smi,
        "train_gpt_goat": train_gpt_goat,
        "nccl_ranks": lambda _: nccl_ranks(),
    }
    sys.exit(programs[Path(sys.argv[0]).name](sys.argv[1:]))
