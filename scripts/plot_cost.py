"""What training costs: time of a step, tokens a second and memory of runs on the same device."""

import math
import tomllib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from console import DataError, UsageError, one_line
from figure_file import COLOURS, REFERENCE, STYLE, literal, plt, wrapped
from matplotlib.patheffects import withStroke
from run_names import names_of
from run_reader import (
    MANIFEST, check_run_folder, finite, flat, is_count, read_config, read_manifest, read_metrics,
    read_summary, step_folders,
)  # fmt: skip

LONGEST_STEP = 1e12  # ms; no step takes 30 years
WARM_UP_STEPS = 2  # the first of a process; the program leaves them out of its speeds too
PROCESS_KEYS = ("memory_bytes", "flops_per_second", "tokens_per_second", "mfu")
HATCHES = ("", "//", "..", "xx", "--", "\\\\", "oo")


@dataclass(frozen=True)
class Cost:
    name: str
    run: Path
    conditions: dict  # what must be the same for costs to compare, by its name in a message
    milliseconds: np.ndarray  # of each step since the last change of settings, without the first ones
    tokens: int  # of a step
    memory: int | None  # bytes that the run's tensors take; None where no file says

    @property
    def step(self):
        """Median and quartiles of a step's time, in ms."""
        low, middle, high = np.percentile(self.milliseconds, (25, 50, 75))
        return middle, low, high

    @property
    def speed(self):
        """Median and quartiles, in tokens/s."""
        middle, low, high = (self.tokens / value * 1000 for value in self.step)
        return middle, high, low


def checkpoint_states(run):
    """What state.json says of each checkpoint where it is whole, the newest first."""
    for folder in step_folders(Path(run)).values():
        try:
            yield read_manifest(folder / MANIFEST)
        except DataError:  # begun, or damaged: it tells nothing
            continue


def resolved_precision(run, config, device):
    """fp32 or bf16: as the newest checkpoint says; else as `auto` is on the device."""
    for state in checkpoint_states(run):
        if isinstance(state.get("precision"), str):
            return state["precision"]
    chosen = config.get("model.precision", "auto")
    return chosen if chosen != "auto" else "fp32" if device == "cpu" else "bf16"


def ranks_of(config, summary):
    """How many ranks trained; between which numbers, where only their leaves of the batch are told."""
    if "ranks" in summary:
        return summary["ranks"]
    leaves = config.get("distributed.leaves", 0)
    return 1 if leaves in (0, 1) else f"1 to {leaves} (not in summary.json; distributed.leaves says no more)"


def conditions_of(run, config, summary):
    """What costs depend on, apart from the model. Raises DataError where a file does not say."""
    try:
        return {
            "device": f"{summary['device']}: {summary['device_description']}",
            "number of ranks": ranks_of(config, summary),
            "precision": resolved_precision(run, config, summary["device"]),
            "sequences a step (train.batch)": config["train.batch"],
            "sequences a micro-batch (train.micro_batch)": config["train.micro_batch"],
            "tokens a sequence (data.seq_len)": config["data.seq_len"],
        }
    except KeyError as error:
        raise DataError(
            f"{run}: config.toml or summary.json lacks {error}; is it of another version?"
        ) from None


@dataclass(frozen=True)
class Step:
    number: int
    milliseconds: float
    traits: tuple  # what stays while a process trains: tokens a step, bytes, FLOPs a token, the peak of MFU


def ratio(a, b):
    return a / b if b else math.nan


def steps_of(run):
    """The steps, from lines of metrics.jsonl that follow each other: `tokens` and `seconds` are sums."""
    before, steps = (0, 0, 0), []
    for line in read_metrics(run):
        number, tokens, seconds = now = tuple(finite(line.get(key)) for key in ("step", "tokens", "seconds"))
        new_tokens, milliseconds = tokens - before[1], 1000 * (seconds - before[2])
        if number - before[0] == 1 and new_tokens > 0 and 0 < milliseconds < LONGEST_STEP:
            memory, flops, speed, mfu = (finite(line.get(key)) for key in PROCESS_KEYS)
            traits = (new_tokens, memory, ratio(flops, speed), ratio(flops, mfu))
            steps.append(Step(int(number), milliseconds, traits))
        before = now
    if not steps:
        raise DataError(f"{Path(run) / 'metrics.jsonl'}: no step has 'step', 'tokens' and 'seconds'")
    return steps


def last_change(run, config, precision, steps):
    """The last step that was trained with other settings or on another device, as far as files tell."""
    traits = np.array([step.traits for step in steps])
    is_as_now = np.isclose(traits, traits[-1], rtol=1e-9, atol=0, equal_nan=True).all(axis=1)
    changed = [step.number for step, same in zip(steps, is_as_now, strict=True) if not same]
    for state in checkpoint_states(run):
        if is_count(state.get("step")) and was_set_otherwise(state, config, precision):
            changed.append(state["step"])
    return max((number for number in changed if number < steps[-1].number), default=0)


def was_set_otherwise(state, config, precision):
    try:
        is_other_config = flat(tomllib.loads(state["config"])) != config
    except (tomllib.TOMLDecodeError, RecursionError):
        is_other_config = False
    return is_other_config or state.get("precision", precision) != precision


def step_times(steps, after):
    """Milliseconds of each step after that one, without the first ones where there are others."""
    times = np.array([step.milliseconds for step in steps if step.number > after])
    return times[WARM_UP_STEPS:] if len(times) > WARM_UP_STEPS else times


def cost_of(run, name):
    check_run_folder(Path(run))
    summary = read_summary(run)
    config = read_config(run)
    if not summary:
        raise UsageError(
            f"{Path(run) / 'summary.json'}: no such file; the run has not finished, and no other file names "
            "its device"
        )
    conditions = conditions_of(run, config, summary)
    sizes = conditions["sequences a step (train.batch)"], conditions["tokens a sequence (data.seq_len)"]
    if not all(is_count(size) and size > 0 for size in sizes):
        raise DataError(f"{Path(run) / 'config.toml'}: train.batch and data.seq_len must be counts")
    steps, tokens = steps_of(run), sizes[0] * sizes[1]
    if steps[-1].traits[0] != tokens:
        raise DataError(
            f"{Path(run) / 'metrics.jsonl'}: its last step trained {steps[-1].traits[0]:,.0f} tokens, and "
            f"train.batch x data.seq_len of config.toml is {tokens:,}; the files are not of one run"
        )
    memory = finite(summary.get("memory_bytes"))
    times = step_times(steps, last_change(run, config, conditions["precision"], steps))
    return Cost(name, Path(run), conditions, times, tokens, int(memory) if memory > 0 else None)


def costs_of(runs):
    """A cost for each run. Raises UsageError if they do not compare."""
    costs = [cost_of(run, name) for run, name in zip(runs, names_of(runs), strict=True)]
    first = costs[0]
    for other in costs[1:]:
        for what, value in first.conditions.items():
            if value != other.conditions[what]:
                raise UsageError(
                    f"{first.run} and {other.run} do not compare, and one chart would say they do: {what} is "
                    f"{value} and {other.conditions[what]}; draw charts of their own"
                )
    return costs


def without_memory(costs):
    """The runs whose files hold no figure of memory."""
    return [cost for cost in costs if cost.memory is None]


def four_digits(value):
    """A number above 0 with 4 significant digits or, where more stand before its point, with those."""
    return f"{value:,.{max(0, 3 - math.floor(math.log10(value)))}f}"


def draw_bars(axes, costs, values, label):
    """A bar a run; whiskers are the quartiles of the steps, where `values` are (median, low, high)."""
    ends_at = []
    for n, value in enumerate(values):
        middle, *ends = value if isinstance(value, tuple) else (value,)
        axes.barh(
            n, middle, color=COLOURS[n % len(COLOURS)], hatch=HATCHES[n % len(HATCHES)], edgecolor="white",
            height=0.7,
        )  # fmt: skip
        if ends:
            outline = withStroke(linewidth=3.5, foreground="white")  # bars may be dark
            axes.plot(
                ends, [n, n], color=REFERENCE, linewidth=1.5, marker="|", markersize=6, path_effects=[outline]
            )
        end = max(middle, *ends) if ends else middle
        ends_at.append(end)
        axes.annotate(
            four_digits(middle), (end, n), xytext=(5, 0), textcoords="offset points", va="center", fontsize=8
        )
    axes.set_xlabel(label)
    axes.set_xlim(0, 1.3 * max(ends_at))
    axes.xaxis.set_major_locator(plt.MaxNLocator(4))
    axes.xaxis.set_major_formatter(plt.FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axes.set_ylim(len(costs) - 0.5, -0.5)


def draw_cost(costs, title):
    """Bars of time, speed and, if all runs tell it, memory."""
    panels = [
        ([cost.step for cost in costs], "ms a step"),
        ([cost.speed for cost in costs], "tokens/s"),
    ]
    if not without_memory(costs):
        mebibytes = [cost.memory / 2**20 for cost in costs]
        panels.append((mebibytes, "memory allocated for training\n(MiB a rank)"))
    with plt.rc_context(STYLE):
        figure, grid = plt.subplots(
            1, len(panels), figsize=(1.6 + 3.1 * len(panels), 1.5 + 0.42 * len(costs)), layout="constrained",
            sharey=True,
        )  # fmt: skip
        literal(figure.suptitle(title, fontsize=9, x=0.012, ha="left"))
        for axes, (values, label) in zip(grid, panels, strict=True):
            draw_bars(axes, costs, values, label)
        grid[0].set_yticks(range(len(costs)), [wrapped(cost.name, 34) for cost in costs], parse_math=False)
    return figure


def title_of(costs):
    """The conditions, which all have in common."""
    device, ranks, precision, batch, micro_batch, length = costs[0].conditions.values()
    return (
        f"{one_line(device)}; ranks: {one_line(ranks)}\n"
        f"{one_line(precision)}, {batch} sequences of {length:,} tokens a step, in "
        f"micro-batches of {micro_batch}; medians of the steps, whiskers: quartiles"
    )


def describe_cost(cost):
    time, speed = four_digits(cost.step[0]), four_digits(cost.speed[0])
    memory = "no figure of memory"
    if cost.memory is not None:
        memory = f"{four_digits(cost.memory / 2**20)} MiB allocated"
    return f"{cost.run}: {time} ms a step, {speed} tokens/s, {memory}."
