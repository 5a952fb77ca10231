#!/usr/bin/env python3
"""What a training step should take, from the times of its kernels alone:

    dev/predict_step.py                                              the committed measurement of an H100
    dev/predict_step.py dev/results/gpu_OTHER.json                   that of another GPU (dev/gpu_check.sh)
    dev/predict_step.py --measured runs/c4_125m/profile/operations.json   beside a profile (--profile N)
    dev/predict_step.py --measured dev/results/gpu_OTHER.json        beside another check

One micro-batch of the presets c4_125m and fineweb_1b, in the size that gpu_check timed. Every operation
counts as often as it runs; attention is scaled from the timed B H to the model's; nothing overlaps and
nothing waits. Of several files the later one's rows replace the same rows of the earlier one. MFU counts
causal attention once: 6 N_matmul + 6 L C T FLOPs a token.
"""

import argparse
import json
import re
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
DEFAULT = [REPOSITORY / "dev/results" / f"gpu_NVIDIA_H100_80GB_HBM3{part}.json" for part in ("", "_variants")]
MODELS = ("c4_125m", "fineweb_1b")
GROUPS = {  # of operations, by the names that gpu_check and --profile give them
    "block GEMMs, three products": r"linear_\w+ (attn\.|mlp\.|qkv|out|up|gate_up|down)",
    "head GEMMs": r"linear_\w+ head",
    "attention with the prior": r"attention_(forward|backward)",
    "norms": r"(layer|rms)norm_",
    "GELU or SwiGLU": r"(gelu|swiglu)_",
    "prior lanes, sink, their gradients": r"prior_lanes_|sink_|softplus_|fourier_table",
    "cross entropy, embedding, optimizer share": (
        r"cross_entropy|add_loss|embedding_|gradient_norm|squared_sums|step_verdict|adamw|set_zero"
    ),
    "other": r"",
}
MEASURED = ("microseconds", "repetitions", "tflops_per_second", "gigabytes_per_second")


class Missing(Exception):
    """A file lacks what the prediction needs."""


def group_of(operation):
    return next(group for group, pattern in GROUPS.items() if re.match(pattern, operation))


@dataclass(frozen=True)
class Model:
    name: str
    block: str
    layers: int
    heads: int
    width: int
    hidden: int
    vocab: int
    length: int
    batch: int
    content: int  # d_c

    @property
    def padded_vocab(self):
        return (self.vocab + 63) // 64 * 64

    @property
    def flops_per_token(self):
        """flops_per_token() of train/model/model_parameters.cpp."""
        matrices = 2 * self.width * self.heads * self.content + 2 * self.width**2
        matrices += (3 if self.block == "llama" else 2) * self.width * self.hidden
        matmul = self.layers * matrices + self.vocab * self.width
        return 6 * matmul + 6 * self.layers * self.width * self.length

    @property
    def weights(self):
        """Elements of the matrices as the optimizer has them, padded; the vectors are below 0.1 %."""
        mlp = (3 if self.block == "llama" else 2) * self.width * self.hidden
        return self.layers * (4 * self.width**2 + mlp) + self.padded_vocab * self.width


def model_of(name, config):
    model, prior, data = config["model"], config.get("prior", {}), config["data"]
    lanes = prior.get("lane_dim") or 2 * prior["pos_rank"] + 2
    return Model(
        name=name,
        block=model.get("block", "gpt"),
        layers=model["layers"],
        heads=model["heads"],
        width=model["width"],
        hidden=model.get("ff_width") or 4 * model["width"],
        vocab=model["vocab"],
        length=data["seq_len"],
        batch=config["train"]["batch"],
        content=model["width"] // model["heads"] - lanes,
    )


def preset_config(name):
    """The config of a preset of the program, from its source."""
    source = (REPOSITORY / "train/config/presets.cpp").read_text()
    return tomllib.loads(re.search(rf'char\* {name} =\s*R"\((.*?)\)"', source, re.DOTALL)[1])


def preset(name):
    return model_of(name, preset_config(name))


def bf16_peak(gpu):
    """FLOP/s of a GPU of the program's table, by its name, or None."""
    source = (REPOSITORY / "train/speed/device_limits.cpp").read_text()
    for names, tflops in re.findall(r'\{\{((?:"[^"]+"(?:, )?)+)\}, ([\d.]+),', source):
        if gpu.removeprefix("NVIDIA ") in re.findall('"([^"]+)"', names):
            return float(tflops) * 1e12
    return None


class Kernels:
    """The timed kernels of one or more files of dev/gpu_check.sh."""

    def __init__(self, checks):
        self.gpu = checks[0]["gpu"].split(",")[0]
        self.torch = checks[0].get("torch", {}).get("result", {}).get("results", [])
        rows = {}
        for check in checks:
            for row in self._rows_of(check):
                rows[tuple(sorted((key, value) for key, value in row.items() if key not in MEASURED))] = row
        self.rows = list(rows.values())

    @staticmethod
    def _rows_of(check):
        if "kernels" in check:
            return [row for part in check["kernels"]["result"]["sections"] for row in part["results"]]
        return [row for part in check.values() if isinstance(part, dict) for row in part.get("rows", [])]

    def row(self, name, **wanted):
        for row in self.rows:
            found = row["name"] == name and all(row.get(key) == value for key, value in wanted.items())
            if found and "microseconds" in row:
                return row
        what = ", ".join(f"{key} = {value}" for key, value in wanted.items())
        raise Missing(f"no kernel {name} with {what or 'any shape'} was timed on {self.gpu}")

    def tokens(self, model):
        return self.row("cross_entropy_backward", model=model.name)["tokens"]


def gemms(kernels, model):
    """name -> milliseconds of one block's, or the head's, products."""
    layers = {row["layer"] for row in kernels.rows if row.get("layer") and row.get("model") == model.name}
    times = {}
    for layer in sorted(layers):
        for product in ("linear_forward", "linear_backward_input", "linear_backward_weight"):
            row = kernels.row(product, model=model.name, layer=layer)
            times[f"{product} {layer.split()[0]}"] = row["microseconds"] / 1e3
    return times


def attention(kernels, model):
    """name -> milliseconds of one block's attention, scaled by its FLOPs from the B H that was timed."""
    sequences = kernels.tokens(model) // model.length
    shape = {"d_h": model.width // model.heads, "T": model.length, "causal": True, "prior": True}
    times = {}
    for name, more in {"attention_forward": {}, "attention_backward": {"deterministic": True}}.items():
        row = kernels.row(name, **shape, **more)
        times[name] = row["microseconds"] / 1e3 * sequences * model.heads / (row["B"] * row["H"])
    return times


def attention_of_torch(kernels, model, backend):
    """Milliseconds of one block's attention at the speed of a backend of PyTorch, without a prior; None if it
    was not timed."""
    sequences, d_h = kernels.tokens(model) // model.length, model.width // model.heads
    flops = 4 * sequences * model.length**2 * model.heads * d_h / 2
    for row in kernels.torch:
        if (row["backend"], row["d_h"], row["T"], row["causal"]) == (backend, d_h, model.length, True):
            forward, backward = row["forward_tflops_per_second"], row["backward_tflops_per_second"]
            if forward and backward:
                return (flops / forward + 2.5 * flops / backward) * 1e-9
    return None


def optimizer(kernels, model):
    """name -> milliseconds of a step's update, by the parameters: once a step."""
    times = {}
    norm = "squared_sums" if any(row["name"] == "squared_sums" for row in kernels.rows) else "gradient_norm"
    for name in (norm, "adamw"):
        row = kernels.row(name)
        times[name] = row["microseconds"] / 1e3 * model.weights / row["parameters"]
    times["set_zero"] = 4 * model.weights / kernels.row("set_zero")["gigabytes_per_second"] * 1e-6
    return times


def predict(kernels, model):
    """operation -> milliseconds of one micro-batch."""
    norm, activation = ("rmsnorm", "swiglu") if model.block == "llama" else ("layernorm", "gelu")
    counts = {
        f"{norm}_forward": 2 * model.layers + 1,
        f"{norm}_backward": 2 * model.layers + 1,
        f"{activation}_forward": model.layers,
        f"{activation}_backward": model.layers,
        "cross_entropy_backward": 1,  # loss and gradient in one pass
        "add_loss": 1,
        "embedding_forward": 1,
        "embedding_backward": 1,
        "prior_lanes_forward": model.layers,
        "prior_lanes_backward": model.layers,
        "sink_forward": model.layers,
        "sink_backward": model.layers,
    }
    times = {
        name: count * kernels.row(name, model=model.name)["microseconds"] / 1e3
        for name, count in counts.items()
    }
    for name, milliseconds in gemms(kernels, model).items():
        times[name] = milliseconds * (1 if name.endswith(" head") else model.layers)
    for name, milliseconds in attention(kernels, model).items():
        times[name] = milliseconds * model.layers
    micro_batches = model.batch * model.length / kernels.tokens(model)
    for name, milliseconds in optimizer(kernels, model).items():
        times[name] = milliseconds / micro_batches
    return times


def grouped(times):
    sums = dict.fromkeys(GROUPS, 0.0)
    for name, milliseconds in times.items():
        sums[group_of(name)] += milliseconds
    return sums


def read_profile(path, models):
    """(name of the model, operation -> milliseconds of a micro-batch, milliseconds of a micro-batch as the
    clock has them) of operations.json as --profile writes it, with config.toml beside it."""
    profile = json.loads(path.read_text())
    config = tomllib.loads((path.parent / "config.toml").read_text())
    ran = model_of("", config)
    for model, tokens in models:
        same = all(
            getattr(ran, key) == getattr(model, key)
            for key in ("block", "layers", "width", "heads", "hidden", "vocab", "length")
        )
        if same and profile["tokens_per_step"] / profile["micro_batches"] == tokens:
            share = 1e3 / profile["micro_batches"]
            times = {row["name"]: row["seconds"] * share for row in profile["operations"]}
            return model.name, times, profile["step_seconds"] * share
    wanted = "; ".join(
        f"{model.name} in micro-batches of {tokens // model.length}" for model, tokens in models
    )
    raise Missing(f"{path} is no profile of {wanted}")


def verdict(milliseconds, tokens, model, peak):
    speed = tokens / milliseconds * 1e3
    text = f"{milliseconds:.1f} ms, {speed / 1e3:,.0f}k tokens/s"
    return text + (f", MFU {100 * speed * model.flops_per_token / peak:.1f} %" if peak else "")


def print_table(header, rows):
    print("| " + " | ".join(header) + " |\n|" + "---|" * len(header))
    for row in rows:
        print("| " + " | ".join(row) + " |")


def print_prediction(kernels, models, peak):
    """The table of sums, and what two changes would make of them."""
    sums = {model.name: grouped(predict(kernels, model)) for model, _ in models}
    header = ["ms a micro-batch"] + [f"{m.name}, {t // m.length} x {m.length:,}" for m, t in models]
    rows = [
        [group, *(f"{sums[model.name][group]:.1f}" for model, _ in models)]
        for group in GROUPS
        if group != "other"
    ]
    totals = {name: sum(groups.values()) for name, groups in sums.items()}
    rows.append(["sum", *(verdict(totals[m.name], t, m, peak) for m, t in models)])
    other = {m.name: attention_of_torch(kernels, m, "cudnn") for m, _ in models}
    if all(other.values()):
        for m, _ in models:
            totals[m.name] += m.layers * other[m.name] - sums[m.name]["attention with the prior"]
        rows.append(
            [
                "with attention at the speed of cuDNN",
                *(verdict(totals[m.name], t, m, peak) for m, t in models),
            ]
        )
    for m, _ in models:  # cuBLASLt has no epilogue for SwiGLU
        totals[m.name] -= sums[m.name]["GELU or SwiGLU"] if m.block == "gpt" else 0
    rows.append(
        ["and GELU in the GEMMs' epilogues", *(verdict(totals[m.name], t, m, peak) for m, t in models)]
    )
    print_table(header, rows)


def print_comparison(model, tokens, predicted, measured, wall, peak):
    """Groups of operations side by side; `wall` is the time of the clock, or None."""
    before, after = grouped(predicted), grouped(measured)
    if any(operation.startswith("linear_gelu") for operation in measured):  # one operation of the program
        before["block GEMMs, three products"] += before["GELU or SwiGLU"]
        before["GELU or SwiGLU"] = 0.0
    rows = []
    for group in GROUPS:
        if before[group] or after[group]:
            ratio = f"{after[group] / before[group]:.2f}" if before[group] else "-"
            rows.append([group, f"{before[group]:.2f}", f"{after[group]:.2f}", ratio])
    sums = sum(before.values()), sum(after.values())
    if wall:
        rows.append(["between operations", "0.00", f"{max(0, wall - sums[1]):.2f}", "-"])
    last = wall or sums[1]
    rows.append(["sum", f"{sums[0]:.2f}", f"{last:.2f}", f"{last / sums[0]:.2f}"])
    print_table([f"{model.name}, ms a micro-batch", "predicted", "measured", "ratio"], rows)
    print(f"\npredicted: {verdict(sums[0], tokens, model, peak)}")
    print(f"measured: {verdict(last, tokens, model, peak)}\n")


def compare(kernels, models, path, peak):
    content = json.loads(path.read_text())
    if "operations" in content:
        name, measured, wall = read_profile(path, models)
        model, tokens = next(pair for pair in models if pair[0].name == name)
        print_comparison(model, tokens, predict(kernels, model), measured, wall, peak)
        return
    other = Kernels([content])
    for model, tokens in models:
        if other.tokens(model) != tokens:
            raise Missing(f"{path} timed {model.name} in another micro-batch")
        print_comparison(model, tokens, predict(kernels, model), predict(other, model), None, peak)


def main(words=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path, default=DEFAULT, help="JSON of dev/gpu_check.sh")
    parser.add_argument("--measured", type=Path, metavar="FILE", help="operations.json or JSON of gpu_check")
    parser.add_argument("--peak-tflops", type=float, help="for MFU (default: the GPU's, by its name)")
    arguments = parser.parse_args(words)
    try:
        kernels = Kernels([json.loads(path.read_text()) for path in arguments.files])
        models = [(model, kernels.tokens(model)) for model in map(preset, MODELS)]
        peak = arguments.peak_tflops * 1e12 if arguments.peak_tflops else bf16_peak(kernels.gpu)
        if arguments.measured:
            compare(kernels, models, arguments.measured, peak)
        else:
            print_prediction(kernels, models, peak)
    except (Missing, OSError, KeyError, json.JSONDecodeError) as problem:
        what = f"no entry {problem}" if isinstance(problem, KeyError) else problem
        sys.exit(f"predict_step: {what}")


if __name__ == "__main__":
    main()
