"""What training costs: time of a step, tokens a second and memory of runs on the same device."""

import tomllib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from console import DataError, UsageError, one_line
from figure_file import COLOURS, REFERENCE, STYLE, literal, plt, wrapped
from plot_loss import names_of
from run_reader import finite, is_count, read_bytes, read_json, read_metrics, read_summary, step_folders

LONGEST_STEP = 1e12  # ms; no step takes 30 years
WARM_UP_STEPS = 2  # the first of a run; the program leaves them out of its speeds too
LARGEST_CONFIG = 1 << 20  # bytes
HATCHES = ("", "//", "..", "xx", "--", "\\\\", "oo")


@dataclass(frozen=True)
class Cost:
    name: str
    run: Path
    conditions: dict  # what must be the same for costs to compare, by its name in a message
    milliseconds: np.ndarray  # of every step after the first ones
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


def read_config(run):
    path = Path(run) / "config.toml"
    if not path.exists():
        raise UsageError(f"{path}: no such file; expected the folder given to train_gpt_goat --out")
    try:
        return tomllib.loads(read_bytes(path, LARGEST_CONFIG).decode())
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: {error}") from None


def resolved_precision(run, config, device):
    """fp32 or bf16: as a checkpoint says; else as `auto` is on the device."""
    for folder in step_folders(Path(run)).values():
        if (folder / "state.json").exists():
            stored = read_json(folder / "state.json").get("precision")
            if isinstance(stored, str):
                return stored
    chosen = config["model"].get("precision", "auto")
    return chosen if chosen != "auto" else "fp32" if device == "cpu" else "bf16"


def conditions_of(run, config, summary):
    """What costs depend on, apart from the model. Raises DataError where a file does not say."""
    try:
        train = config["train"]
        return {
            "device": f"{summary['device']}: {summary['device_description']}",
            "precision": resolved_precision(run, config, summary["device"]),
            "sequences a step (train.batch)": train["batch"],
            "sequences a micro-batch (train.micro_batch)": train["micro_batch"],
            "tokens a sequence (data.seq_len)": config["data"]["seq_len"],
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{run}: config.toml or summary.json lacks {error}; is it of another version?")


def step_times(run, tokens):
    """Milliseconds of each step, without the first ones where there are others."""
    speeds = [finite(line.get("tokens_per_second")) for line in read_metrics(run)]
    times = np.array([1000 * tokens / speed for speed in speeds if speed > 0])
    times = times[times < LONGEST_STEP]
    if not len(times):
        raise DataError(f"{Path(run) / 'metrics.jsonl'}: no step has tokens_per_second")
    return times[WARM_UP_STEPS:] if len(times) > WARM_UP_STEPS else times


def cost_of(run, name):
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
    memory = finite(summary.get("memory_bytes"))
    return Cost(
        name, Path(run), conditions, step_times(run, sizes[0] * sizes[1]), sizes[0] * sizes[1],
        int(memory) if memory > 0 else None,
    )  # fmt: skip


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


def draw_bars(axes, costs, values, label, number):
    """A bar a run; whiskers are the quartiles of the steps, where `values` are (median, low, high)."""
    ends_at = []
    for n, value in enumerate(values):
        middle, *ends = value if isinstance(value, tuple) else (value,)
        axes.barh(
            n, middle, color=COLOURS[n % len(COLOURS)], hatch=HATCHES[n % len(HATCHES)], edgecolor="white",
            height=0.7,
        )  # fmt: skip
        if ends:
            axes.plot(ends, [n, n], color=REFERENCE, linewidth=1.5, marker="|", markersize=6)
        end = max(middle, *ends) if ends else middle
        ends_at.append(end)
        axes.annotate(
            number(middle), (end, n), xytext=(5, 0), textcoords="offset points", va="center", fontsize=8
        )
    axes.set_xlabel(label)
    axes.set_xlim(0, 1.3 * max(ends_at))
    axes.xaxis.set_major_locator(plt.MaxNLocator(4))
    axes.set_ylim(len(costs) - 0.5, -0.5)


def draw_cost(costs, title):
    """Bars of time, speed and, if all runs tell it, memory."""
    panels = [
        ([cost.step for cost in costs], "ms a step", lambda value: f"{value:,.1f}"),
        ([cost.speed for cost in costs], "tokens/s", lambda value: f"{value:,.0f}"),
    ]
    if not without_memory(costs):
        mebibytes = [cost.memory / 2**20 for cost in costs]
        label = "memory allocated for training\n(MiB a rank)"
        panels.append((mebibytes, label, lambda value: f"{value:,.1f}"))
    with plt.rc_context(STYLE):
        figure, grid = plt.subplots(
            1, len(panels), figsize=(1.6 + 3.1 * len(panels), 1.5 + 0.42 * len(costs)), layout="constrained",
            sharey=True,
        )  # fmt: skip
        literal(figure.suptitle(title, fontsize=9, x=0.012, ha="left"))
        for axes, (values, label, number) in zip(grid, panels, strict=True):
            draw_bars(axes, costs, values, label, number)
        grid[0].set_yticks(range(len(costs)), [wrapped(cost.name, 34) for cost in costs], parse_math=False)
    return figure


def title_of(costs):
    """The conditions, which all have in common."""
    device, precision, batch, micro_batch, length = costs[0].conditions.values()
    return (
        f"{one_line(device)}\n{one_line(precision)}, {batch} sequences of {length:,} tokens a step, in "
        f"micro-batches of {micro_batch}; medians of the steps, whiskers: quartiles"
    )


def describe_cost(cost):
    memory = "no figure of memory" if cost.memory is None else f"{cost.memory / 2**20:,.1f} MiB allocated"
    return f"{cost.run}: {cost.step[0]:,.1f} ms a step, {cost.speed[0]:,.0f} tokens/s, {memory}."
