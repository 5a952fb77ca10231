"""The page of scripts/report.py, section by section."""

import math
from datetime import UTC, datetime

import numpy as np
from console import count, some
from eval_reader import EVALUATION, note_on_data
from plot_loss import draw_loss
from plot_prior import describe_prior, draw_prior
from report_commands import evaluation_commands, figure_commands, training_commands
from report_figures import figure_of
from report_html import bitmap_kind, document, element, number, picture, table
from report_runs import by_kind, differing_settings, labelled, last_sign_of_life
from run_reader import finite, is_number

ROUNDING = (
    "Numbers are those of the runs' files, rounded: losses to 4 decimals, perplexities to 5 significant "
    "digits, accuracies to 0.1 %, speeds, bytes and seconds to 4 significant digits; hours are cut to "
    "minutes. In tables each stands unrounded in the page's source, as the value of its data element; those "
    "in sentences are rounded alone."
)
ABSENT, NOT_FINITE = "\N{EN DASH}", "not finite"


# Numbers


def rounded(value, form):
    """A number of a file in this form; what is no finite number stays as it is."""
    if not is_number(value):
        return ABSENT if value is None else str(value)
    return number(value, form(value)) if math.isfinite(finite(value)) else str(value)


def significant(value, digits=4):
    """1234.5 as 1,234 or 1,235, 0.0012345 as 0.001234 or 0.001235."""
    decimals = digits - 1 - math.floor(math.log10(abs(value))) if value else 0
    return (
        f"{round(value, decimals):,.{max(decimals, 0)}f}" if -4 < decimals < 9 else f"{value:.{digits - 1}e}"
    )


def scaled(value, units, step):
    """In the largest unit that leaves 1 or more."""
    for unit in units[:-1]:
        if abs(value) < step:
            return f"{significant(value)} {unit}"
        value /= step
    return f"{significant(value)} {units[-1]}"


def loss(value):
    return rounded(value, lambda value: f"{value:.4f}")


def whole(value):
    return rounded(value, lambda value: f"{value:,}")


def perplexity(row):
    """A program that cannot write the loss or its exponential as JSON writes null."""
    value = row.get("perplexity")
    if value is None:
        with np.errstate(over="ignore"):
            value = float(np.exp(finite(row["nll"])))
    if is_number(value) and math.isnan(finite(value)):
        return NOT_FINITE
    return rounded(value, lambda value: significant(value, 5))


def percent(value):
    return rounded(value, lambda value: f"{value:.1%}")


def duration(value):
    def text(seconds):
        if seconds < 60:
            return f"{significant(seconds)} s"
        minutes, rest = divmod(round(seconds), 60)
        hours, minutes = divmod(minutes, 60)
        return f"{hours:,} h {minutes} min" if hours else f"{minutes} min {rest} s"

    return rounded(value, text)


# Sections


def status_of(run):
    steps, planned = run.steps, run.planned_steps
    if run.is_finished:
        return "finished"
    of = f" of {planned:,}" if is_number(planned) else ""
    done = f"step {steps:,}{of}" if is_number(steps) else "no step yet"
    seen = last_sign_of_life(run)
    return f"not finished (in progress, or stopped): {done}" + (f"; last line written {seen}" if seen else "")


def device_of(run):
    names = [run.summary.get(key) for key in ("device", "device_description")]
    return ": ".join(str(name) for name in names if name) or "not recorded before the end of a run"


def start_of(run):
    if not run.start:
        return "random weights"
    return f"weights of {run.start.get('checkpoint', 'another run')}"


def loss_at_step(step, value):
    return element("span", loss(float(value)), f" at step {step:,}")


def last_loss(run, key):
    value = run.latest(key)
    is_null = value is None and any(key in entry for entry in [run.summary, *run.metrics])
    return NOT_FINITE if is_null else loss(value)


def best_of(run):
    best = run.best_validation()
    return loss_at_step(*best) if best else ABSENT


def smoothed_of(run):
    """With its step where the last steps have no finite loss."""
    end = run.smoothed_loss()
    if not end:
        return ABSENT
    step, value = end
    return loss(value) if step == run.steps else loss_at_step(step, value)


def said(items, css=""):
    return element("ul", *(element("li", item) for item in items), css=css) if items else "none"


def in_units(value, units, step):
    return rounded(value, lambda value: scaled(value, units, step))


BYTES = ["B", "KiB", "MiB", "GiB", "TiB"]
FLOPS = [f"{prefix}FLOP/s" for prefix in ("", "k", "M", "G", "T", "P")]
FACTS = {  # a row of the table of runs, and what it says of one
    "folder": lambda run: str(run.folder),
    "status": status_of,
    "warnings": lambda run: said(run.warnings, "warning"),
    "not there": lambda run: said(run.notes),
    "steps": lambda run: whole(run.steps),
    "tokens": lambda run: whole(run.latest("tokens")),
    "parameters": lambda run: whole(run.parameters()),
    "of them the prior's": lambda run: whole(run.summary.get("parameters_prior")),
    "start": start_of,
    "device": device_of,
    "precision": lambda run: run.state.get("precision") or ABSENT,
    "program": lambda run: str(run.latest("program") or "version not recorded"),
    "time": lambda run: duration(run.latest("seconds")),
    "speed": lambda run: in_units(run.latest("tokens_per_second"), ["tokens/s"], 1000),
    "arithmetic": lambda run: in_units(run.latest("flops_per_second"), FLOPS, 1000),
    "MFU": lambda run: percent(run.latest("mfu")),
    "memory": lambda run: in_units(run.latest("memory_bytes"), BYTES, 1024),
    "skipped updates": lambda run: whole(run.summary.get("skipped_updates", sum(run.skipped().values()))),
    "newest checkpoint": lambda run: run.checkpoint.folder.name if run.checkpoint else ABSENT,
}
LOSSES = {
    "training, last step": lambda run: last_loss(run, "loss"),
    "training, smoothed, at the end": smoothed_of,
    "validation, last": lambda run: last_loss(run, "val_loss"),
    "validation, lowest": best_of,
    "best possible (Bayes-optimal)": lambda run: loss(run.latest("bayes_optimal_loss")),
}


def facts_table(runs, facts):
    """A row for each fact that at least one run has."""
    rows = [[what, *map(say, runs)] for what, say in facts.items()]
    is_known = [any(said_of_run != ABSENT for said_of_run in cells) for _, *cells in rows]
    return table(
        ["", *(run.name for run in runs)], [row for row, known in zip(rows, is_known, strict=True) if known]
    )


def runs_section(runs):
    yield facts_table(runs, FACTS)


def shown(value):
    """A value of a config."""
    if value is None:
        return ABSENT
    return str(value).lower() if isinstance(value, bool) else str(value) or '""'


def config_section(runs):
    differing = differing_settings(runs)
    if len(runs) == 1:
        yield element("p", "One run: there is nothing to compare. Its settings stand in its command below.")
    elif not differing:
        yield element("p", "The configs of the runs are the same.")
    else:
        rows = []
        for section, keys in differing.items():
            rows.append([f"[{section}]"])
            rows += [[key, *map(shown, values)] for key, values in keys.items()]
        note = f"Only keys that differ. {ABSENT}: the run's config lacks the key."
        yield element("p", note, css="faint")
        yield table(["key", *(run.name for run in runs)], rows)


def loss_section(runs):
    with_loss = [run for run in runs if run.has_losses]
    if without := [run.name for run in runs if not run.has_losses]:
        yield element("p", f"Without a finite loss: {some(without)}.")
    if not with_loss:
        return
    caption = "Pale: every step. Strong: smoothed over a hundredth of the run. Points: validation."
    names = some([run.name for run in with_loss])
    figure = draw_loss([run.folder for run in with_loss], names=[run.name for run in with_loss])
    yield picture(figure, f"Training and validation loss by step of {names}", caption)
    yield facts_table(with_loss, {what: say for what, say in LOSSES.items()})


def length_rows(measured, say):
    lengths = sorted({row["length"] for each in measured for row in each.evaluation.rows})
    rows = []
    for each in measured:
        cells = {row["length"]: say(row) for row in each.evaluation.rows}
        rows.append([labelled(each, measured), *(cells.get(length, ABSENT) for length in lengths)])
    return table(["length (tokens)", *(f"{length:,}" for length in lengths)], rows, "numbers")


def depth_table(each, key):
    rows = each.evaluation.rows
    lengths = sorted({row["length"] for row in rows})
    depths = sorted({row["depth"] for row in rows if is_number(row.get("depth"))})
    cells = {(row.get("depth"), row["length"]): percent(row.get(key)) for row in rows}
    head = ["depth \\ length", *(f"{length:,}" for length in lengths)]
    shown_rows = [[f"{depth:g}", *(cells.get((depth, n), ABSENT) for n in lengths)] for depth in depths]
    return table(head, shown_rows, "numbers")


ACCURACIES = {"span_token_accuracy": "answers' tokens", "strict_accuracy": "whole answers"}


def tables_of_kind(measured):
    """(heading, table) of each table of evaluations of one kind."""
    is_task, has_depths, of = measured[0].kind
    task = f"{of}: " if of else ""
    if has_depths:
        for each in measured:
            for key, what in ACCURACIES.items():
                heading = f"{task}accuracy of {what} by depth and length, {labelled(each, measured)}"
                yield heading, depth_table(each, key)
    elif is_task:
        for key, what in ACCURACIES.items():
            made = length_rows(measured, lambda row, key=key: percent(row.get(key)))
            yield f"{task}accuracy of {what} by length", made
    else:
        yield f"Perplexity by length{f', protocol {of}' if of else ''}", length_rows(measured, perplexity)


def described(each):
    """What was evaluated, in a line."""
    said_of = each.contents
    words = [f"trained at length {each.evaluation.train_length:,}"]
    words += [
        f"{key} {said_of[key]}" for key in ("protocol", "data", "device", "precision") if key in said_of
    ]
    if each.run is None:
        words.append("a run that is not among those of this page")
    return f"{each.where}: {each.name}, {'; '.join(words)}."


SEEDS_AVERAGED = (
    " Runs X_seed1, X_seed2, ... of one folder are one curve, the mean of their perplexities; its band goes "
    "from the lowest to the highest."
)


def evaluation_figure(figure):
    if figure.note:
        yield element("p", figure.note)
    if figure.command:
        names = some([each.name for each in figure.group])
        caption = "As in the table." + (SEEDS_AVERAGED if figure.averages_seeds else "")
        yield picture(figure.draw(), f"Evaluation by length of {names}", caption)


def evaluation_section(runs, measured, figures):
    without = [run.name for run in runs if not any(each.run is run for each in measured)]
    if without:
        how = f"./train_gpt_goat eval --checkpoint RUN --json RUN/{EVALUATION} makes one"
        yield element("p", f"Not evaluated, there is no {EVALUATION}: {some(without)}; {how}.")
    for figure in figures:
        note = note_on_data([each.evaluation for each in figure.group])
        for heading, made in tables_of_kind(figure.group):
            yield element("h3", heading + note)
            yield made
        yield from evaluation_figure(figure)
        yield said([described(each) for each in figure.group], "faint")


def prior_section(runs):
    for run in runs:
        for matrices, layer in run.priors:
            title = matrices.title("Learned attention prior", run.name, layer)
            figure = draw_prior(matrices, title)
            yield picture(figure, title, describe_prior(matrices), "wide", [bitmap_kind(figure)])
    if not any(run.priors for run in runs):
        yield element("p", "No run has a learned prior that can be drawn.")


def command_block(what, command):
    return element("div", element("p", what, css="faint"), element("pre", element("code", command)))


def command_section(runs, measured, figures, own_command):
    place = "Run them in the repository's folder, or with the paths as they are from there."
    yield element(
        "p", f"{place} A run that was resumed with other settings has the config of its last start."
    )
    for run in runs:
        yield element("h3", run.name)
        if folder := run.state.get("data", {}).get("working_folder"):
            yield element("p", f"The training was started in {folder}.", css="faint")
        yield from (command_block(*each) for each in training_commands(run))
    if measured:
        yield element("h3", "Evaluations")
    for what, command in evaluation_commands(measured):
        yield command_block(what, command) if command else element("p", what, css="faint")
    yield element("h3", "Figures and this page")
    yield from (command_block(*each) for each in figure_commands(runs, figures))
    yield command_block("This page", own_command)


def page(runs, measured, own_command):
    """The bytes of the page."""
    figures = [figure_of(group) for group in by_kind(measured)]
    sections = {
        "Runs": runs_section(runs),
        "Differences of the configs": config_section(runs),
        "Loss": loss_section(runs),
        "Evaluation": evaluation_section(runs, measured, figures),
        "Learned prior": prior_section(runs),
        "Commands": command_section(runs, measured, figures, own_command),
    }
    title = f"{count(len(runs), 'run')}: {some([run.name for run in runs], 5)}"
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    body = element("body", element("h1", title), element("p", f"Written {now}. {ROUNDING}", css="faint"))
    places = {name: f"s{place}" for place, name in enumerate(sections)}
    links = (element("a", name, href=f"#{place}") for name, place in places.items())
    body.append(element("nav", *links))
    for name, contents in sections.items():
        body.append(element("section", element("h2", name, id=places[name]), *contents))
    return document(title, body)
