"""Markdown tables of what reproduce.py has finished."""

import math
from collections import defaultdict

import numpy as np
from console import DataError


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
    """`4.341 ± 0.010`: mean and standard deviation over seeds; the value alone where there is one."""
    values = np.array(values, dtype=np.float64)
    mean = f"{values.mean():.{digits}f}"
    return f"{mean} ± {values.std(ddof=1):.{digits}f}" if len(values) > 1 else mean


def at_lengths(result, key):
    """{length: mean over its rows (the depths)} of a key of `eval --json`."""
    cells = defaultdict(list)
    for row in result["evaluations"]["eval"]["results"]:
        cells[row["length"]].append(row[key])
    return {length: float(np.mean(values)) for length, values in sorted(cells.items())}


def length_table(first, results, value, digits):
    """A row for each variant, a column for each length. value(result): {length: number}."""
    lengths = sorted(value(results[0]))
    rows = []
    for variant, group in by_variant(results).items():
        values = [value(result) for result in group]
        if any(sorted(each) != lengths for each in values):
            raise DataError(f"{variant}: its files have other lengths than {results[0]['variant']}")
        cells = [mean_and_spread([each[length] for each in values], digits) for length in lengths]
        rows.append([variant, str(len(group)), *cells])
    return table([first, "seeds", *(f"{length:,}" for length in lengths)], rows)


def perplexities(result):
    return {length: math.exp(loss) for length, loss in at_lengths(result, "nll").items()}


def extrapolation_tables(results):
    return "Perplexity by length:\n\n" + length_table("positions", results, perplexities, 3)


def genome_tables(results):
    def bits(result):
        return {length: loss / math.log(2) for length, loss in at_lengths(result, "nll").items()}

    rows = results[0]["evaluations"]["eval"]["results"]
    tokens = ", ".join(f"{row['tokens']:,} at {row['length']:,}" for row in rows)
    table_of_bits = length_table("positions", results, bits, 3)
    return f"Bits a base by length, of the first bases of each record ({tokens}):\n\n{table_of_bits}"


def retrieval_tables(results):
    parts = []
    for task in ("passkey", "niah"):
        group = [result for result in results if result["preset"] == task]
        for key, what in (("span_token_accuracy", "characters"), ("strict_accuracy", "whole answers")):
            if group:
                shown = length_table("positions", group, lambda result, key=key: at_lengths(result, key), 2)
                parts.append(f"{task}, share of {what} that are right, by length:\n\n{shown}")
    return "\n\n".join(parts)


TABLES = {
    "extrapolation": extrapolation_tables,
    "retrieval": retrieval_tables,
    "ablations": extrapolation_tables,
    "genome": genome_tables,
}


SPREAD = "± is the standard deviation over seeds, of training and data order; it says nothing of the tokens."


def tables_of(study, results):
    return f"{TABLES[study](results)}\n\n{SPREAD}" if results else "no model is finished yet"
