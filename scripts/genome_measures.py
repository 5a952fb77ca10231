"""How like the truth a continuation of a genome is: GC content, its correlation, and matches by position."""

import numpy as np

BASES = "ACGNT"  # in the order of their tokens
WINDOW = 25  # bases

DEFINITIONS = {
    "gc": "share of G and C in each window of 25 bases, stride 1; an N counts as neither",
    "pearson_r": "correlation of a completion's gc with the truth's; null where one of them is constant",
    "matches": "share of the positions at which the completion has the base of the truth",
    "mean_pearson_r": "mean of those that are not null; null if all are",
    "matches_by_position": "share of the samples that have the base of the truth at this position",
}


def gc_content(bases, window=WINDOW):
    """Share of G and C in each window: len(bases) - window + 1 numbers."""
    is_gc = np.isin(list(bases), ["G", "C"])
    return np.lib.stride_tricks.sliding_window_view(is_gc, window).mean(axis=1)


def pearson_r(one, other):
    """The correlation of two sequences of numbers; None where it has no value, since one is constant."""
    one, other = np.asarray(one, float), np.asarray(other, float)
    if np.ptp(one) == 0 or np.ptp(other) == 0:
        return None
    one, other = one - one.mean(), other - other.mean()
    r = (one @ other) / np.sqrt((one @ one) * (other @ other))
    return float(np.clip(r, -1, 1))


def matches(truth, completion):
    """[len(truth)] whether the base is that of the truth."""
    return np.array(list(truth)) == np.array(list(completion))


def mean_or_none(values):
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None
