"""Which evaluations are those of one model that was trained with several seeds."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from console import DataError
from eval_reader import are_of_different_data, data_of, names_of_evaluations, note_on_data
from run_reader import CONFIG, differing_keys, read_config

SEED = re.compile(r"[-_. ]?seed[-_. ]?[0-9]+$")  # at the end of a run's name
THIN = 0.7  # points: the line of one seed
DRAWN_WITH = re.compile(r", seed [0-9]+$")  # in the description of generated data


@dataclass(frozen=True)
class Model:
    """Evaluations by one protocol that are seeds of one model, or one evaluation. It is named as an
    evaluation is."""

    run: Path  # of seeds: their runs' common path, without the seed
    step: str
    protocol: str
    path: Path
    seeds: list


def config_of(evaluation):
    """The settings of its run without the seed: from the file itself, the run's folder or the one the file
    lies in. {} if there are none."""
    if evaluation.settings:
        return {key: value for key, value in evaluation.settings.items() if key != "train.seed"}
    for folder in (evaluation.run, Path(evaluation.path).absolute().parent):
        if os.path.exists(folder / CONFIG):  # False also where it may not be looked for
            config = read_config(folder)
            config.pop("train.seed", None)
            return config
    return {}


def differing_settings(first, other):
    """Names of settings that differ. A config of an older program lacks keys that came later, whose defaults
    compute as it did: only keys that both have are compared. Files of reproduce.py say what was chosen."""
    configs = [config_of(first), config_of(other)]
    if not (first.settings and other.settings):
        both = configs[0].keys() & configs[1].keys()
        configs = [{key: config[key] for key in both} for config in configs]
    return sorted(differing_keys(configs))


def seed_of(evaluation):
    """As its run's name ends, "" without."""
    found = SEED.search(evaluation.run.name)
    return found.group() if found else ""


def data_without_seed(evaluation):
    return DRAWN_WITH.sub("", data_of(evaluation))


def note_on_models(evaluations):
    """As note_on_data. Samples that each seed draws anew are the same for models of the same seeds."""
    seeds = {tuple(sorted(map(seed_of, members))) for _, members in models_of(evaluations)}
    data = {(seed_of(each), data_of(each)) for each in evaluations if each.data}
    have_same = len(seeds) == 1 and len(data) == len({seed for seed, _ in data})
    return note_on_data(evaluations, data_without_seed if have_same else data_of)


def check_same_settings(evaluations):
    """Refuses to average what are not seeds of the same settings, as far as the files tell."""
    first = evaluations[0]
    for other in evaluations[1:]:
        pair = f"{first.where} and {other.where} are called seeds of one model, but"
        if not np.array_equal(first.lengths, other.lengths):
            raise DataError(f"{pair} were evaluated at different lengths")
        if first.train_length != other.train_length:
            raise DataError(f"{pair} were trained at different lengths")
        if first.step != other.step:
            raise DataError(f"{pair} were evaluated after different steps: {first.step}, {other.step}")
        if are_of_different_data([first, other], data_without_seed):
            texts = dict.fromkeys(each.data for each in (first, other) if each.data)
            said = "; ".join(texts) if len(texts) > 1 else "other depths, or numbers of tokens or samples"
            raise DataError(f"{pair} were evaluated on different data: {said}")
        if keys := differing_settings(first, other):
            raise DataError(f"{pair} have different settings: {', '.join(keys[:5])}; rename one of the runs")


def models_of(evaluations):
    """(name, evaluations) of each model: runs X_seed1, X_seed2, ... in one folder, evaluated by one protocol,
    are one. A run that is there twice is not averaged."""
    groups = {}
    for each in evaluations:
        model = SEED.sub("", each.run.name) or each.run.name
        groups.setdefault((each.run.parent / model, each.protocol), []).append(each)
    models = []
    for (run, protocol), members in groups.items():
        if 1 < len(members) == len({each.run for each in members}):
            models.append(Model(run, "", protocol, members[0].path, members))
        else:
            models += [Model(each.run, each.step, protocol, each.path, [each]) for each in members]
    return [(name, each.seeds) for name, each in zip(names_of_evaluations(models), models, strict=True)]


@dataclass(frozen=True)
class Curve:
    """A value by length: of one evaluation, or of several seeds of the same settings."""

    name: str
    lengths: np.ndarray
    seeds: np.ndarray  # [seeds, lengths]

    @property
    def mean(self):
        return self.seeds.mean(axis=0)

    @property
    def highest(self):
        return self.seeds.max(axis=0)

    def draw(self, axes, style):
        """The mean."""
        axes.plot(self.lengths, self.mean, markersize=5, label=self.name, **style)

    def draw_band(self, axes, style):
        """From the lowest to the highest seed."""
        if len(self.seeds) > 1:
            band = {"color": style["color"], "alpha": 0.2, "linewidth": 0}
            axes.fill_between(self.lengths, self.seeds.min(axis=0), self.highest, **band)

    def draw_seeds(self, axes, style):
        """A thin line for each seed, with the curve's dashes and marker, where bands would overlap."""
        if len(self.seeds) > 1:
            thin = {"alpha": 0.5, "linewidth": THIN, "markersize": 2.5, "zorder": 1.5}
            axes.plot(self.lengths, self.seeds.T, **style, **thin)
