"""How the page of scripts/report.py draws evaluations of one kind, and which command of plot.py does so."""

from dataclasses import dataclass

import numpy as np
from console import DataError
from plot_eval import draw_eval, grid_of, perplexities
from plot_extrapolation import curves_of, draw_extrapolation
from report_runs import Measured, labelled
from seeds import models_of


@dataclass(frozen=True)
class EvaluationFigure:
    """The figure of a group of evaluations. command: that of plot.py which draws it, "" where there is none;
    note: a sentence about it."""

    group: list[Measured]
    command: str = "eval"
    note: str = ""

    @property
    def averages_seeds(self):
        models = models_of([each.evaluation for each in self.group])
        return self.command == "extrapolation" and any(len(seeds) > 1 for _, seeds in models)

    def draw(self):
        """The figure of extrapolation names its curves itself: one may be of several runs."""
        evaluations = [each.evaluation for each in self.group]
        if self.command == "extrapolation":
            return draw_extrapolation(evaluations)
        return draw_eval(evaluations, [labelled(each, self.group) for each in self.group])


def no_figure(group, reason):
    return EvaluationFigure(group, "", f"No figure: {reason}.")


def goes_beyond_training(evaluation):
    """Whether it has several lengths, and one that is longer than those of the training."""
    return len(evaluation.lengths) > 1 and evaluation.lengths.max() > evaluation.train_length


def figure_of_perplexities(group):
    evaluations = [each.evaluation for each in group]
    if not any(np.isfinite(perplexities(each)).any() for each in evaluations):
        return no_figure(group, "no evaluation has a finite loss")
    if not any(map(goes_beyond_training, evaluations)):
        return EvaluationFigure(group)
    try:
        curves_of(evaluations)
    except DataError as error:
        return EvaluationFigure(group, note=f"Each run has a curve of its own: {error}.")
    return EvaluationFigure(group, "extrapolation")


def figure_of(group):
    """The figure of evaluations of one kind."""
    kind = group[0].evaluation.kind
    if kind == "perplexity":
        return figure_of_perplexities(group)
    try:
        if kind == "depths":
            for each in group:
                grid_of(each.evaluation)
    except DataError as error:
        return no_figure(group, error)
    return EvaluationFigure(group)
