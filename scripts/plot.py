#!/usr/bin/env python3
"""Figures of runs of train_gpt_goat.

  plot.py prior RUN      the attention prior each head has learned -> RUN/figures/prior.png
  plot.py mask RUN       that prior without the causal mask and with it, side by side
  plot.py loss RUN ...   loss curves of one or more runs           -> RUN/figures/loss.png (of the first run)
  plot.py cost RUN ...   time of a step, tokens/s and memory of runs on the same device

from what `train_gpt_goat analyze --checkpoint RUN` has left in RUN/analysis:

  plot.py sink RUN       the key bias u(j) of each head, in its parts: slope, MLP, bump
  plot.py signal RUN ... content range, p_0, largest p and recent mass by query, runs beside each other

from files:

  plot.py eval FILE ...  what `eval --json FILE` measured, by length -> FILE.png (beside the first file)
  plot.py extrapolation FILE ...  perplexity by length, curves of a narrow range in detail
  plot.py retrieval FILE ...  accuracy of tasks by length, mean over depths
  plot.py genome RUN     RUN/completions.json, from scripts/genome_completions.py: GC content, matches, bases

RUN is the folder that the trainer wrote: config.toml, metrics.jsonl, checkpoints/. `prior` and `mask` also
take a checkpoint on its own, a folder with model.safetensors and state.json. Without --checkpoint they draw
the newest checkpoint that is whole. --out names another file; its ending chooses the format (.png, .pdf,
.svg, ...). Exit codes: 0 done, 1 failure (disk, memory, interrupted, missing package), 2 wrong use, 3 bad
data.
"""

import argparse
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import console

warn = partial(console.warn, "plot.py")

RUN = ("run", {"type": Path, "metavar": "RUN", "help": "the folder of a run"})
GOAT_RUN = (
    "run",
    {"type": Path, "metavar": "RUN", "help": "the folder of a run with model.attention = goat"},
)
RUNS = ("runs", {"type": Path, "nargs": "+", "metavar": "RUN", "help": "folders of runs"})
FILES = (
    "files",
    {
        "type": Path,
        "nargs": "+",
        "metavar": "FILE",
        "help": "what train_gpt_goat eval --json wrote, or a run: its eval.json",
    },
)
CHECKPOINT = (
    "--checkpoint",
    {"type": int, "metavar": "N", "help": "step of the checkpoint (default: the newest)"},
)
LAYER = ("--layer", {"type": int, "metavar": "L", "default": 0, "help": "layer, from 0 (default: 0)"})
ONE_LAYER = ("--layer", {"type": int, "metavar": "L", "help": "one layer, from 0 (default: all)"})
LENGTH = (
    "--length",
    {"type": int, "metavar": "T", "help": "positions (default: the run's seq_len, at most 512)"},
)
PROMPT = ("--prompt", {"type": int, "metavar": "N", "help": "one prompt, from 0 (default: the first 6)"})


@dataclass(frozen=True)
class Command:
    draws: str  # the function of plot_commands
    help: str
    default: str  # where the figure goes
    arguments: tuple


COMMANDS = {
    "prior": Command(
        "prior", "the attention prior each head has learned", "RUN/figures/prior.png",
        (GOAT_RUN, CHECKPOINT, LAYER, LENGTH),
    ),
    "mask": Command(
        "mask", "the prior over all keys, and causal", "RUN/figures/mask.png",
        (GOAT_RUN, CHECKPOINT, LAYER, LENGTH),
    ),
    "loss": Command("loss", "loss curves of one or more runs", "figures/loss.png of RUN", (RUNS,)),
    "cost": Command("cost", "time, speed and memory of training", "figures/cost.png of RUN", (RUNS,)),
    "sink": Command("sink", "the key bias u(j) and its parts", "RUN/figures/sink.png", (RUN, ONE_LAYER)),
    "signal": Command(
        "signal", "what attention makes of content and prior", "figures/signal.png of RUN", (RUNS, ONE_LAYER)
    ),
    "eval": Command(
        "evaluation", "perplexity, or a task's accuracy, by length", "the first FILE, as .png", (FILES,)
    ),
    "extrapolation": Command(
        "extrapolation", "perplexity by length, curves of a narrow range in detail",
        "beside the first FILE, FILE_extrapolation.png", (FILES,),
    ),
    "retrieval": Command(
        "retrieval", "accuracy of tasks by length, mean over depths",
        "beside the first FILE, FILE_retrieval.png", (FILES,),
    ),
    "genome": Command("genome", "completions beside the truth", "RUN/figures/genome.png", (RUN, PROMPT)),
}  # fmt: skip


def parse_arguments(words):
    parser = console.Parser(
        prog="plot.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parsers = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        one = parsers.add_parser(name, help=command.help)
        one.set_defaults(draws=command.draws)
        for argument, options in command.arguments:
            one.add_argument(argument, **options)
        help_text = f"figure to write (default: {command.default})"
        one.add_argument("--out", type=Path, metavar="FILE", help=help_text)
    return parser.parse_args(words)


def run(words):
    arguments = parse_arguments(words)
    import plot_commands
    from figure_file import check_figure_path, write_figure

    if arguments.out:
        check_figure_path(arguments.out)
    drawing = getattr(plot_commands, arguments.draws)(arguments, warn)
    path = arguments.out or drawing.path
    for addition, figure in drawing.figures.items():
        file = path.with_stem(path.stem + addition) if addition else path
        write_figure(figure, file)
        console.say(str(file))
    for sentence in drawing.sentences:
        console.say(sentence)


def main(words=None):
    return console.run_script("plot.py", lambda: run(words))


if __name__ == "__main__":
    sys.exit(main())
