#!/usr/bin/env python3
"""The result of dev/gpu_check.sh:

    dev/gpu_check_report.py collect WORK FILE --commit C --gpu G --command W   its sections as one JSON
    dev/gpu_check_report.py show FILE                                          the summary of that JSON

`collect` prints the summary too, and exits with 1 if a section failed. Needs nothing but Python.
"""

import argparse
import datetime
import json
import sys
from pathlib import Path

KEPT = 3000  # characters of a section's output
SAME = "the same bit for bit, {} steps, the model and the optimizer's state"
GIB = 2**30


def section_of(work, name):
    """What dev/gpu_check.sh kept of a section: its exit status, seconds, and its JSON or its last output; or
    why the machine could not run it."""
    output, errors = ((work / f"{name}{end}").read_text(errors="replace") for end in (".out", ".err"))
    section = {
        "exit": int((work / f"{name}.status").read_text()),
        "seconds": float((work / f"{name}.seconds").read_text()),
    }
    reason = work / f"{name}.not_run"
    if reason.exists():
        return section | {"not_run": reason.read_text().strip()}
    try:
        section["result"] = json.loads(output)
    except ValueError:
        section["output"] = output[-KEPT:]
    if section["exit"]:
        section["errors"] = errors[-KEPT:]
    return section


def collect(work, file, commit, gpu, command):
    check = {"date": datetime.date.today().isoformat(), "commit": commit, "gpu": gpu, "command": command}
    for name in (work / "sections").read_text().split():
        check[name] = section_of(work, name)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(check, indent=1) + "\n")
    return check


def sections_of(check):
    return {name: part for name, part in check.items() if isinstance(part, dict) and "exit" in part}


def failures(check):
    return {name: section for name, section in sections_of(check).items() if section["exit"]}


def not_run(check):
    return {name: section["not_run"] for name, section in sections_of(check).items() if "not_run" in section}


def result_of(check, name):
    return check.get(name, {}).get("result")


def table(header, rows):
    return ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)] + [
        "| " + " | ".join(row) + " |" for row in rows
    ]


def speeds(check):
    """A row for each training run that was measured, those of the memory section first."""
    memory = result_of(check, "memory") or {"runs": {}}
    rows = []
    for name in sections_of(check):
        run = result_of(check, name)
        if not name.startswith(("c4_125m", "fineweb_1b")) or not run:
            continue
        mfu = f"{100 * run['mfu']:.1f} %" if "mfu" in run else "-"
        planned, peak = (run["memory"][key] / GIB for key in ("planned_bytes", "peak_bytes"))
        over = memory["runs"].get(name, {}).get("over_plan")
        rows.append(
            [
                name,
                f"{run['micro_batch']}",
                run["recompute"],
                f"{run['tokens_per_second']:,.0f}",
                mfu,
                f"{planned:.2f}",
                f"{peak:.2f}",
                "-" if over is None else f"{100 * over:+.2f} %",
            ]
        )
    if not rows:
        return []
    lines = ["## Training", ""]
    sizes = ["micro-batch", "recompute"]
    lines += table(["run", *sizes, "tokens/s", "MFU", "plan, GiB", "peak, GiB", "over plan"], rows)
    if "context_bytes" in memory:
        lines += ["", f"*Over plan* is without the context: {memory['context_bytes'] / GIB:.2f} GiB."]
    return [*lines, ""]


def comparisons(check):
    lines = []
    for name, text in {
        "same_again": "the same run twice",
        "same_without_graph": "with a recorded graph and without",
        "same_resumed": "stopped, resumed and uninterrupted",
    }.items():
        if result := result_of(check, name):
            lines.append(f"* {text}: {SAME.format(result['steps'])}")
    for name, text in {
        "losses_beside_simt": "beside the simulated GPU in bf16",
        "losses_beside_cpu": "beside the CPU in fp32",
    }.items():
        if result := result_of(check, name):
            lines.append(
                f"* losses {text}: mean absolute difference {result['mean_absolute_difference']:.2g} in "
                f"{result['steps']} steps, largest {result['largest']:.2g} at step {result['at_step']}"
            )
    return ["## Runs that belong together", "", *lines, ""] if lines else []


WAYS = {
    "gpus": "a GPU each",
    "hosts": "on one GPU, as two hosts (NCCL_HOSTID)",
    "shared": "on one GPU, as NCCL allows (NCCL_MULTI_RANK_GPU_ENABLE)",
}


def ranks(check):
    """The lines of part ranks, none where it did not run."""
    lines = []
    if library := result_of(check, "nccl"):
        lines.append(f"* NCCL {library['version']}, {library['library']}")
    for name, section in sections_of(check).items():
        kind, _, rest = name.partition("_")
        size, _, way = rest.partition("_")
        if section["exit"] or "not_run" in section or way not in WAYS:
            continue
        who = f"{size} ranks {WAYS[way]}" if size != "1" else "one rank"
        if kind == "contracts":
            lines.append(f"* contract tests: {who}")
        elif kind == "same":
            lines.append(f"* {who} and one rank: {SAME.format(section['result']['steps'])}")
    if killed := result_of(check, "killed_rank"):
        lines.append(
            f"* rank {killed['killed']} was killed: the others ended after {killed['seconds']:.2f} s"
        )
        lines.append(f"  and said `{killed['said']}`")
    return ["## Several ranks", "", *lines, ""] if lines else []


def extrapolation(check):
    """The table of part extrapolate, none where it did not come to its end."""
    result = result_of(check, "extrapolation")
    if not result:
        return []
    first, last = result["lengths"][0], result["lengths"][-1]
    rows = []
    for name, model in result["models"].items():
        sizes = [f"{model['tokens']:,}", f"{model['loss']:.3f}", f"{model['tokens_per_second']:,.0f}"]
        perplexities = [f"{value:,.2f}" for value in model["perplexity"]]
        ratio = f"{model['ratio']:.3f}, " + ("flat" if model["flat"] else "not flat")
        rows.append([name.removeprefix("extrapolate_"), *sizes, *perplexities, ratio])
    header = ["", "tokens", "loss", "tokens/s", *(f"{length:,}" for length in result["lengths"])]
    return [
        "## Beyond the training length",
        "",
        f"Each trained {result['steps']:,} steps at length {first:,}: {result['epochs']:.2f} epochs of the "
        f"text. Perplexities are of the same {result['eval_tokens']:,} validation tokens at each length. "
        f"Flat is one that is at most {result['flat_within']:g} times that at {first:,}.",
        "",
        *table([*header, f"{last:,} / {first:,}"], rows),
        "",
    ]


def gaps(check):
    result = result_of(check, "gaps")
    if not result:
        return []
    step, idle = result["step_microseconds"], result["idle_microseconds"]
    lines = [
        "## Idle time of the device in a profiled step",
        "",
        f"{idle:,.0f} of {step:,.0f} microseconds ({100 * idle / step:.1f} %) in {result['gaps']:,.0f} gaps.",
        "",
    ]
    rows = [
        [f"{gap['microseconds']:,.1f}", f"{gap.get('gaps', 1):.1f}", gap["after"], gap["before"]]
        for gap in result["most_idle"]
    ]
    lines += table(["microseconds a step", "gaps", "after", "before"], rows)
    rows = [[f"{gap['microseconds']:,.1f}", gap["after"], gap["before"]] for gap in result["largest"]]
    return [*lines, "", *table(["largest, microseconds", "after", "before"], rows), ""]


def prediction(check):
    part = check.get("prediction", {})
    if part.get("exit") or "output" not in part:
        return []
    return ["## The step that the kernels' times predict", "", part["output"].strip(), ""]


def training(check):
    """The lines of parts train, ranks and extrapolate, none where they did not run."""
    beside = [*comparisons(check), *ranks(check), *extrapolation(check)]
    return [*speeds(check), *beside, *gaps(check), *prediction(check)]


def last_words(section):
    lines = (section["errors"].strip() or section.get("output", "").strip()).splitlines()
    return "; ".join(lines[-3:]) if lines else "it said nothing"


def summary(check):
    sections = sections_of(check)
    failed, left_out = failures(check), not_run(check)
    lines = [f"# {check['gpu'].split(',')[0]}", ""]
    lines += [f"`{check['command']}` at {check['commit']}, {check['date']}, {check['gpu']}.", ""]
    lines += training(check)
    seconds = sum(section["seconds"] for section in sections.values())
    tried = len(sections) - len(left_out)
    last = f"{tried - len(failed)} of {tried} sections passed in {seconds:.0f} s"
    lines.append(last + (f", {len(left_out)} were not run." if left_out else "."))
    lines += [f"not run {name}: {reason}" for name, reason in left_out.items()]
    lines += [
        f"FAILED {name} (exit {section['exit']}): {last_words(section)}" for name, section in failed.items()
    ]
    return "\n".join(lines)


def main(words=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    kinds = parser.add_subparsers(dest="kind", required=True)
    kind = kinds.add_parser("collect")
    kind.add_argument("work", type=Path)
    kind.add_argument("file", type=Path)
    for name in ("commit", "gpu", "command"):
        kind.add_argument(f"--{name}", required=True)
    kinds.add_parser("show").add_argument("file", type=Path)
    arguments = vars(parser.parse_args(words))
    if arguments.pop("kind") == "show":
        print(summary(json.loads(arguments["file"].read_text())))
        return
    check = collect(**arguments)
    print("\n" + summary(check))
    print("gpu_check: wrote", arguments["file"])
    sys.exit(1 if failures(check) else 0)


if __name__ == "__main__":
    main()
