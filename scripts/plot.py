#!/usr/bin/env python3
"""Figures of a run of train_gpt_goat.

  plot.py prior RUN      the attention prior each head has learned -> RUN/figures/prior.png
  plot.py loss RUN ...   loss curves of one or more runs           -> RUN/figures/loss.png (of the first run)
  plot.py eval FILE ...  what `eval --json FILE` measured, by length -> FILE.png (beside the first file)

RUN is the folder that the trainer wrote: config.toml, metrics.jsonl, checkpoints/. `prior` also takes a
checkpoint on its own, a folder with model.safetensors and state.json. Without --checkpoint it draws the
newest checkpoint that is whole. Exit codes: 0 done, 1 failure (disk, memory, interrupted, missing package),
2 wrong use, 3 bad data.
"""

import argparse
import sys
from functools import partial
from pathlib import Path

import console

warn = partial(console.warn, "plot.py")


def plot_prior(arguments):
    from figure_file import check_figure_path, write_figure
    from plot_loss import describe_loss
    from plot_prior import describe_prior, draw_prior, prior_matrices
    from run_reader import read_summary

    if arguments.out:
        check_figure_path(arguments.out)
    matrices = prior_matrices(arguments.run, arguments.layer, arguments.length, arguments.checkpoint, warn)
    checkpoint = matrices.checkpoint
    name = checkpoint.run.resolve().name
    figure = draw_prior(
        matrices, f"Learned attention prior: {name}, layer {arguments.layer}, step {matrices.step}"
    )
    file = "prior.png" if arguments.layer == 0 else f"prior_layer{arguments.layer}.png"
    path = arguments.out or checkpoint.run / "figures" / file
    write_figure(figure, path)
    console.say(str(path))
    console.say(f"Layer {arguments.layer} at step {matrices.step}, from {checkpoint.folder}.")
    console.say(describe_prior(matrices))
    if checkpoint.run != checkpoint.folder:  # a model that was passed on has no run
        console.say(describe_loss(read_summary(checkpoint.run)))


def plot_loss(arguments):
    from figure_file import check_figure_path, write_figure
    from plot_loss import describe_loss, draw_loss
    from run_reader import read_summary

    if arguments.out:
        check_figure_path(arguments.out)
    path = arguments.out or arguments.runs[0] / "figures" / "loss.png"
    write_figure(draw_loss(arguments.runs, warn), path)
    console.say(str(path))
    for run in arguments.runs:
        console.say(f"{run}: {describe_loss(read_summary(run))}")


def plot_eval(arguments):
    from figure_file import check_figure_path, write_figure
    from plot_eval import describe_eval, draw_kinds, read_evaluations

    if arguments.out:
        check_figure_path(arguments.out)
    evaluations = [evaluation for file in arguments.files for evaluation in read_evaluations(file)]
    path = arguments.out or arguments.files[0].with_suffix(".png")
    for kind, figure in draw_kinds(evaluations):
        file = path.with_stem(path.stem + kind)
        write_figure(figure, file)
        console.say(str(file))
    for evaluation in evaluations:
        console.say(describe_eval(evaluation))


def parse_arguments(words):
    parser = console.Parser(
        prog="plot.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    prior = commands.add_parser("prior", help="the attention prior each head has learned")
    prior.set_defaults(command=plot_prior)
    prior.add_argument(
        "run", type=Path, metavar="RUN", help="the folder of a run with model.attention = goat"
    )
    prior.add_argument(
        "--checkpoint", type=int, metavar="N", help="step of the checkpoint (default: the newest)"
    )
    prior.add_argument("--layer", type=int, metavar="L", default=0, help="layer, from 0 (default: 0)")
    prior.add_argument(
        "--length", type=int, metavar="T", help="positions (default: the run's seq_len, at most 512)"
    )
    prior.add_argument(
        "--out", type=Path, metavar="FILE", help="figure to write (default: RUN/figures/prior.png)"
    )
    loss = commands.add_parser("loss", help="loss curves of one or more runs")
    loss.set_defaults(command=plot_loss)
    loss.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="folders of runs")
    loss.add_argument(
        "--out", type=Path, metavar="FILE", help="figure to write (default: figures/loss.png of RUN)"
    )
    evaluation = commands.add_parser("eval", help="perplexity, or a task's accuracy, by length")
    evaluation.set_defaults(command=plot_eval)
    evaluation.add_argument(
        "files", type=Path, nargs="+", metavar="FILE", help="what train_gpt_goat eval --json wrote"
    )
    evaluation.add_argument(
        "--out", type=Path, metavar="FILE", help="figure to write (default: the first FILE, as .png)"
    )
    return parser.parse_args(words)


def run(words):
    arguments = parse_arguments(words)
    arguments.command(arguments)


def main(words=None):
    return console.run_script("plot.py", lambda: run(words))


if __name__ == "__main__":
    sys.exit(main())
