"""Markdown tables of what reproduce.py has finished."""

import math
from collections import defaultdict

import numpy as np
from console import DataError, UsageError
from run_reader import finite


def by_variant(results):
    """{variant: its results}, in the order in which they come."""
    groups = defaultdict(list)
    for result in results:
        groups[result["variant"]].append(result)
    return groups


def table(header, rows):
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def mean_and_spread(values, digits):
    """`4.341 ± 0.010`: mean and standard deviation over seeds; the value alone where there is one; a dash if
    one is missing, as the loss of a model that has diverged."""
    values = np.array(values, dtype=np.float64)
    if np.isnan(values).any():
        return "–"
    if np.isinf(values).any():
        return "inf"
    mean = f"{values.mean():,.{digits}f}"
    return f"{mean} ± {values.std(ddof=1):.{digits}f}" if len(values) > 1 else mean


def at_lengths(result, key):
    """{length: mean over its rows (the depths)} of a key of `eval --json`."""
    cells = defaultdict(list)
    for row in result["evaluations"]["eval"]["results"]:
        cells[row["length"]].append(finite(row[key]))
    return {length: float(np.mean(values)) for length, values in sorted(cells.items())}


def length_table(results, value, digits):
    """A row for each variant, a column for each length. value(result): {length: number}."""
    lengths = sorted(value(results[0]))
    rows = []
    for variant, group in by_variant(results).items():
        values = [value(result) for result in group]
        if any(sorted(each) != lengths for each in values):
            raise DataError(f"{variant}: its files have other lengths than {results[0]['variant']}")
        cells = [mean_and_spread([each[length] for each in values], digits) for length in lengths]
        rows.append([variant, str(len(group)), *cells])
    return table(["positions", "seeds", *(f"{length:,}" for length in lengths)], rows)


class Lengths:
    """Tables by length: of values or, against a variant, of what they are more than that one's with the same
    seed."""

    def __init__(self, against=None):
        self.against = against
        self.note = f", less that of {against} with the same seed" if against else ""

    def table(self, results, value, digits):
        if not self.against:
            return length_table(results, value, digits)
        references = {result["seed"]: value(result) for result in self.references(results)}
        others = [each for each in results if each["variant"] != self.against and each["seed"] in references]
        if not others:
            raise DataError(f"--against {self.against}: no other row has a seed in common with it")

        def difference(result):
            reference = references[result["seed"]]
            return {length: number - reference[length] for length, number in value(result).items()}

        return length_table(others, difference, digits)

    def references(self, results):
        groups = by_variant(results)
        if self.against not in groups:
            raise DataError(f"--against {self.against}: no such row; there are: {'; '.join(groups)}")
        return groups[self.against]


def perplexities(result):
    with np.errstate(over="ignore"):
        return {length: float(np.exp(loss)) for length, loss in at_lengths(result, "nll").items()}


def perplexity_tables(results, lengths):
    return f"Perplexity by length{lengths.note}:\n\n{lengths.table(results, perplexities, 3)}"


def value_table(results, columns):
    """A row for each variant. columns: {heading: (function of a result, digits)}; means over seeds."""
    rows = []
    for variant, group in by_variant(results).items():
        cells = [
            mean_and_spread([value(each) for each in group], digits) for value, digits in columns.values()
        ]
        rows.append([variant, *cells])
    return table(["positions", *columns], rows)


def extrapolation_tables(results, lengths):
    perplexity = perplexity_tables(results, lengths)
    if lengths.against:
        return perplexity
    columns = {
        "memory (MB)": (lambda result: result["summary"]["memory_bytes"] / 1e6, 2),
        "parameters": (lambda result: result["summary"]["parameters"], 0),
    }
    one_each = [group[0] for group in by_variant(results).values()]  # all seeds take the same
    memory = value_table(one_each, columns)
    return f"{perplexity}\n\nMemory of training, by the plan:\n\n{memory}"


def genome_tables(results, lengths):
    def bits(result):
        return {length: loss / math.log(2) for length, loss in at_lengths(result, "nll").items()}

    rows = results[0]["evaluations"]["eval"]["results"]
    tokens = ", ".join(f"{row['tokens']:,} at {row['length']:,}" for row in rows)
    heading = f"Bits a base by length{lengths.note}, of the first bases of each record ({tokens})"
    text = f"{heading}:\n\n{lengths.table(results, bits, 3)}"
    completed = [result for result in results if result.get("completions")]
    if lengths.against or not completed:
        return text
    columns = {
        "Pearson's r of the GC content": (lambda result: result["completions"]["mean_pearson_r"], 3),
        "bases that match": (lambda result: result["completions"]["mean_matches"], 3),
    }
    seeds = ", ".join(str(seed) for seed in sorted({result["seed"] for result in completed}))
    return f"{text}\n\nCompletions, seed {seeds}:\n\n{value_table(completed, columns)}"


def signal_tables(results, lengths):
    if lengths.against:
        raise UsageError("--against: this study has no table by length")

    def mean_of(key):
        return lambda result: np.mean([head["signal_vs_sink"][key] for head in result["analysis"]["by_head"]])

    columns = {
        "content range (nats)": (mean_of("omega"), 2),
        "p of the first key": (mean_of("p_first"), 4),
        "largest p": (mean_of("p_max"), 3),
        "mass of the last 128 keys": (mean_of("mass_last_128"), 3),
    }
    analysis = results[0]["analysis"]
    heading = f"Attention of queries {analysis['first_row']:,} to {analysis['length'] - 1:,}, mean over heads"
    return f"{heading}:\n\n{value_table(results, columns)}"


def retrieval_tables(results, lengths):
    parts = []
    for task in ("passkey", "niah"):
        group = [result for result in results if result["preset"] == task]
        for key, what in (("span_token_accuracy", "characters"), ("strict_accuracy", "whole answers")):
            if group:
                shown = lengths.table(group, lambda result, key=key: at_lengths(result, key), 2)
                heading = f"{task}, share of {what} that are right, by length{lengths.note}"
                parts.append(f"{heading}:\n\n{shown}")
    return "\n\n".join(parts)


TABLES = {
    "extrapolation": extrapolation_tables,
    "retrieval": retrieval_tables,
    "ablations": perplexity_tables,
    "genome": genome_tables,
    "signal": signal_tables,
}


SPREAD = "± is the standard deviation over seeds, of training and data order; it says nothing of the tokens."
SPREAD_OF_TASKS = "± is the standard deviation over seeds, of training and of samples: each seed has its own."


def tables_of(study, results, against=None):
    """against: the variant from which differences are shown, in place of values."""
    if not results:
        return "no model is finished yet"
    tables = TABLES[study](results, Lengths(against))
    if "±" not in tables:
        return tables
    return f"{tables}\n\n{SPREAD_OF_TASKS if study == 'retrieval' else SPREAD}"
