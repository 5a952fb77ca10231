"""What each command of plot.py draws: a figure, where it goes by default, and sentences about it."""

from dataclasses import dataclass
from pathlib import Path

import figure_file  # noqa: F401  before anything of matplotlib: it chooses the backend
from console import DataError, some
from eval_reader import each_once, read_evaluations
from plot_cost import costs_of, describe_cost, draw_cost, title_of, without_memory
from plot_eval import describe_eval, draw_kinds
from plot_extrapolation import describe_extrapolation, draw_extrapolation
from plot_genome import chosen_prompts, describe_genome, draw_genome, read_completions
from plot_loss import describe_loss, draw_loss
from plot_mask import describe_mask, draw_mask
from plot_prior import describe_prior, draw_prior, prior_matrices
from plot_retrieval import describe_retrieval, draw_retrieval
from plot_signal import describe_signal, draw_signal, signals_of
from plot_sink import describe_sink, draw_sink, sink_parts
from run_reader import read_summary


@dataclass(frozen=True)
class Drawing:
    figures: dict  # by what is added to the file's name
    path: Path
    sentences: list


def figures_of(run, name, layer=None):
    """RUN/figures/NAME.png, or that of a layer other than the one drawn by default."""
    return run / "figures" / (f"{name}.png" if layer is None else f"{name}_layer{layer}.png")


def matrices_of(arguments, warn):
    return prior_matrices(arguments.run, arguments.layer, arguments.length, arguments.checkpoint, warn)


def where_from(matrices, layer):
    gates = " What its gates forget depends on the text and is not drawn." if matrices.has_gates else ""
    return f"Layer {layer} at step {matrices.step}, from {matrices.checkpoint.folder}.{gates}"


def prior(arguments, warn):
    matrices, layer = matrices_of(arguments, warn), arguments.layer
    checkpoint = matrices.checkpoint
    run = checkpoint.run
    figure = draw_prior(matrices, matrices.title("Learned attention prior", run.resolve().name, layer))
    sentences = [where_from(matrices, layer), describe_prior(matrices)]
    if run != checkpoint.folder:  # a model that was passed on has no run
        sentences.append(describe_loss(read_summary(run)))
    return Drawing({"": figure}, figures_of(run, "prior", layer or None), sentences)


def mask(arguments, warn):
    matrices, layer = matrices_of(arguments, warn), arguments.layer
    run = matrices.checkpoint.run
    figure = draw_mask(matrices, matrices.title("The prior and the mask", run.resolve().name, layer))
    sentences = [where_from(matrices, layer), describe_mask(matrices)]
    return Drawing({"": figure}, figures_of(run, "mask", layer or None), sentences)


def loss(arguments, warn):
    sentences = [f"{run}: {describe_loss(read_summary(run))}" for run in arguments.runs]
    return Drawing({"": draw_loss(arguments.runs, warn)}, figures_of(arguments.runs[0], "loss"), sentences)


def evaluations_of(files):
    return each_once([evaluation for file in files for evaluation in read_evaluations(file)])


def path_beside(file, what):
    """Beside a file that holds evaluations; a run has a folder for its figures."""
    if file.is_dir():
        return figures_of(file, what)
    return file.with_suffix(".png") if what == "eval" else file.with_name(f"{file.stem}_{what}.png")


def evaluation(arguments, warn):
    evaluations = evaluations_of(arguments.files)
    sentences = [describe_eval(each) for each in evaluations]
    return Drawing(draw_kinds(evaluations), path_beside(arguments.files[0], "eval"), sentences)


def tasks_among(evaluations, is_task, warn):
    """The evaluations of tasks, or those of perplexity: a file may hold both. Raises DataError if none is
    there."""
    drawn = [each for each in evaluations if each.is_task == is_task]
    others = some(dict.fromkeys(str(each.path) for each in evaluations if each.is_task != is_task))
    there = "perplexities: plot.py extrapolation" if is_task else "accuracies of tasks: plot.py retrieval"
    if not drawn:
        raise DataError(f"{others}: nothing to draw but {there}")
    if others:
        warn(f"warning: {others}: left out are {there}")
    return drawn


def beside_the_first(files, what, evaluations, draw, describe):
    return Drawing({"": draw(evaluations)}, path_beside(files[0], what), describe(evaluations))


def extrapolation(arguments, warn):
    perplexities = tasks_among(evaluations_of(arguments.files), False, warn)
    drawing = (draw_extrapolation, describe_extrapolation)
    return beside_the_first(arguments.files, "extrapolation", perplexities, *drawing)


def retrieval(arguments, warn):
    tasks = tasks_among(evaluations_of(arguments.files), True, warn)
    return beside_the_first(arguments.files, "retrieval", tasks, draw_retrieval, describe_retrieval)


def sink(arguments, warn):
    parts = sink_parts(arguments.run, arguments.layer, warn)
    analysis = parts.analysis
    figure = draw_sink(parts, f"Key bias u(j): {analysis.name}, step {analysis.step}")
    return Drawing({"": figure}, figures_of(arguments.run, "sink", arguments.layer), [describe_sink(parts)])


def signal(arguments, warn):
    signals = signals_of(arguments.runs, arguments.layer, warn)
    path = figures_of(arguments.runs[0], "signal", arguments.layer)
    return Drawing({"": draw_signal(signals)}, path, [describe_signal(each) for each in signals])


def genome(arguments, warn):
    step, prompts = read_completions(arguments.run)
    chosen = chosen_prompts(prompts, arguments.prompt)
    figure = draw_genome(chosen, f"Completions of a genome: {arguments.run.resolve().name}, step {step}")
    path = figures_of(arguments.run, "genome" if arguments.prompt is None else f"genome_{arguments.prompt}")
    left_out = len(prompts) - len(chosen) if arguments.prompt is None else 0
    more = [f"{left_out} more prompts are in the file: --prompt N draws one."] if left_out else []
    return Drawing({"": figure}, path, [describe_genome(chosen), *more])


def cost(arguments, warn):
    costs = costs_of(arguments.runs)
    for each in without_memory(costs):
        warn(f"warning: {each.run}: summary.json holds no memory_bytes; time alone is drawn")
    path = figures_of(arguments.runs[0], "cost")
    return Drawing({"": draw_cost(costs, title_of(costs))}, path, [describe_cost(each) for each in costs])
