"""The figure of costs: bars against the files, and what does not compare."""

import json

import numpy as np
import pytest

import plot
import plot_cost
from fabricated_run import fails, no_figure_stays_open, toml, write_manifest  # with fixtures

BATCH, LENGTH = 4, 8
TOKENS = BATCH * LENGTH


def write_lines(folder, steps):
    """metrics.jsonl of steps, (ms, tokens, changes of what else the line says) each."""
    sums, lines = np.cumsum([(tokens, ms / 1000) for ms, tokens, _ in steps], axis=0), []
    for n, ((ms, tokens, more), (all_tokens, seconds)) in enumerate(zip(steps, sums, strict=True), 1):
        said = {"memory_bytes": 5, "flops_per_token": 7e6, "peak": None} | more
        speed = 1000 * tokens / ms
        flops = said["flops_per_token"] * speed
        line = {"step": n, "loss": 1.0, "tokens": int(all_tokens), "seconds": seconds}
        line |= {"tokens_per_second": speed, "flops_per_second": flops, "memory_bytes": said["memory_bytes"]}
        lines.append(line | ({"mfu": flops / said["peak"]} if said["peak"] else {}))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def write_state(run, step, **state):
    folder = run / "checkpoints" / f"step_{step:08d}"
    folder.mkdir(parents=True)
    write_manifest(folder, {"format": 1, "step": step, "config": (run / "config.toml").read_text()} | state)
    return folder / "state.json"


def write_costs(folder, milliseconds, memory=3 << 20, summary=(), **changes):
    """A run whose steps took so long. `changes` are keys of its config, as train__batch=8."""
    config = {
        "distributed": {"leaves": 1},
        "model": {"precision": "auto"},
        "data": {"seq_len": LENGTH},
        "train": {"batch": BATCH, "micro_batch": 2},
    }
    for name, value in changes.items():
        section, key = name.split("__")
        config[section][key] = value
    tokens = config["train"]["batch"] * config["data"]["seq_len"]
    folder.mkdir()
    (folder / "config.toml").write_text(toml(config))
    write_lines(folder, [(ms, tokens, {}) for ms in milliseconds])
    known = {"device": "cpu", "device_description": "EPYC, 2 threads"}
    known |= {"memory_bytes": memory} if memory is not None else {}
    (folder / "summary.json").write_text(json.dumps(known | dict(summary)))
    return folder


def bars_of(axes):
    return [bar.get_width() for bar in axes.patches]


def whiskers_of(axes):
    return [sorted(line.get_xdata()) for line in axes.lines]


def draw(*runs):
    costs = plot_cost.costs_of(list(runs))
    return plot_cost.draw_cost(costs, plot_cost.title_of(costs))


def test_bars_are_the_medians_of_the_steps_and_whiskers_their_quartiles(tmp_path):
    a = write_costs(tmp_path / "a", [900, 500, 10, 20, 30, 40, 50])  # the first two are no measure
    b = write_costs(tmp_path / "b", [900, 500, 25, 25, 25], memory=5 << 20)
    time, speed, memory = draw(a, b).axes
    assert bars_of(time) == pytest.approx([30, 25])
    assert whiskers_of(time)[0] == pytest.approx([20, 40])
    assert all(line.get_path_effects() for line in time.lines)  # a white outline: bars may be as dark
    assert bars_of(speed) == pytest.approx([TOKENS / 0.030, TOKENS / 0.025])
    assert whiskers_of(speed)[0] == pytest.approx([TOKENS / 0.040, TOKENS / 0.020])
    assert bars_of(memory) == pytest.approx([3, 5]) and not whiskers_of(memory)
    assert (time.get_xlabel(), speed.get_xlabel()) == ("ms a step", "tokens/s")
    assert "MiB a rank" in memory.get_xlabel()
    assert [label.get_text() for label in time.get_yticklabels()] == ["a", "b"]
    assert [text.get_text() for text in time.texts] == ["30.00", "25.00"]
    looks = {(bar.get_facecolor(), bar.get_hatch()) for bar in time.patches}
    assert len({colour for colour, _ in looks}) == len({hatch for _, hatch in looks}) == 2


def test_numbers_have_the_digits_that_tell_runs_apart(tmp_path):
    time, speed, memory = draw(write_costs(tmp_path / "a", [0.6996] * 5, memory=2_064_646)).axes
    assert [axes.texts[0].get_text() for axes in (time, speed, memory)] == ["0.6996", "45,740", "1.969"]
    memory.figure.canvas.draw()
    labels = [label.get_text() for label in speed.get_xticklabels()]
    assert "45,000" in labels and "0" in labels
    assert "0.25" in [label.get_text() for label in time.get_xticklabels()]


def test_a_title_says_what_all_have_in_common(tmp_path):
    figure = draw(write_costs(tmp_path / "a$", [1, 1, 1], summary={"device_description": "a $ b"}))
    title = figure.get_suptitle()
    for part in ("cpu: a $ b; ranks: 1", "fp32", "4 sequences of 8 tokens", "micro-batches of 2"):
        assert part in title
    assert not figure._suptitle.get_parse_math()


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"summary": {"device_description": "EPYC, 1 thread"}}, "is cpu: EPYC, 2 threads and cpu: EPYC, 1"),
        ({"summary": {"device": "cuda"}, "model__precision": "fp32"}, "device is cpu"),
        ({"model__precision": "bf16"}, "precision is fp32 and bf16"),
        ({"train__batch": 8}, "sequences a step (train.batch) is 4 and 8"),
        ({"train__micro_batch": 4}, "sequences a micro-batch (train.micro_batch) is 2 and 4"),
        ({"distributed__leaves": 8}, "number of ranks is 1 and 1 to 8"),
        ({"summary": {"ranks": 8}}, "number of ranks is 1 and 8"),
        ({"data__seq_len": 16}, "tokens a sequence (data.seq_len) is 8 and 16"),
    ],
)
def test_runs_under_other_conditions_are_refused_with_the_reason(tmp_path, fails, changes, part):
    a, b = write_costs(tmp_path / "a", [1] * 5), write_costs(tmp_path / "b", [1] * 5, **changes)
    error = fails(2, "cost", a, b)
    assert "do not compare" in error and part in error and not (a / "figures").exists()
    assert plot.main(["cost", str(b)]) == 0


def test_precision_is_that_of_the_checkpoint_or_of_auto_on_the_device(tmp_path):
    run = write_costs(tmp_path / "a", [1])
    config = {"model.precision": "auto"}
    assert plot_cost.resolved_precision(run, config, "cpu") == "fp32"
    assert plot_cost.resolved_precision(run, config, "cuda") == "bf16"
    assert plot_cost.resolved_precision(run, {"model.precision": "fp32"}, "cuda") == "fp32"
    write_state(run, 1, precision="bf16")
    assert plot_cost.resolved_precision(run, config, "cpu") == "bf16"
    damaged = write_state(run, 2, precision="fp32")
    damaged.write_text(damaged.read_text().replace("fp32", "bf32"))
    assert plot_cost.resolved_precision(run, config, "cpu") == "bf16"


def test_ranks_are_those_of_the_summary_where_it_has_them(tmp_path):
    a = write_costs(tmp_path / "a", [1] * 5, summary={"ranks": 2}, distributed__leaves=8)
    b = write_costs(tmp_path / "b", [1] * 5, summary={"ranks": 2}, distributed__leaves=2)
    assert "; ranks: 2\n" in plot_cost.title_of(plot_cost.costs_of([a, b]))


def times_of(run):
    return plot_cost.cost_of(run, "a").milliseconds


def test_a_step_takes_what_its_own_tokens_took_whatever_the_batch_was_then(tmp_path):
    run = write_costs(tmp_path / "a", [1], train__batch=8)
    write_lines(run, [(10, TOKENS, {})] * 9 + [(ms, 2 * TOKENS, {}) for ms in (300, 200, 19, 20, 21)])
    cost = plot_cost.cost_of(run, "a")
    assert cost.milliseconds == pytest.approx([19, 20, 21])  # not 10, nor 20 of steps that took 10
    assert cost.speed[0] == pytest.approx(2 * TOKENS / 0.020)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"memory_bytes": 5}, {"memory_bytes": 6}),
        ({}, {"peak": 1e15}),
        ({"peak": 1e15}, {"peak": 2e15}),
        ({"peak": 1e15}, {}),
        ({"flops_per_token": 6e6}, {}),
    ],
    ids=str,
)
def test_steps_before_the_last_change_that_lines_tell_do_not_count(tmp_path, before, after):
    run = write_costs(tmp_path / "a", [1])
    write_lines(run, [(80, TOKENS, before)] * 9 + [(ms, TOKENS, after) for ms in (300, 200, 19, 20, 21)])
    assert times_of(run) == pytest.approx([19, 20, 21])


def test_steps_before_a_change_that_checkpoints_tell_do_not_count(tmp_path):
    run = write_costs(tmp_path / "a", [80, 80, 80, 300, 200, 19, 20, 21], train__steps=8)
    now = (run / "config.toml").read_text()
    every = [80, 300, 200, 19, 20, 21]
    assert times_of(run) == pytest.approx(every)
    write_state(run, 8, precision="fp32", config=now)
    write_state(run, 2, precision="fp32", config=now)
    assert times_of(run) == pytest.approx(every)
    write_state(run, 3, precision="fp32", config=now.replace("steps = 8", "steps = 3"))
    assert times_of(run) == pytest.approx([19, 20, 21])
    write_state(run, 4, precision="bf16", config=now)
    assert times_of(run) == pytest.approx([20, 21])


def test_a_line_without_the_one_before_it_has_no_time(tmp_path):
    run = write_costs(tmp_path / "a", [9, 9, 30, 500, 31, 32])
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[:3] + lines[4:]))
    assert times_of(run) == pytest.approx([30, 32])  # neither 531 nor 31


def test_without_a_figure_of_memory_time_alone_is_drawn_and_the_run_is_named(tmp_path, capsys):
    a, b = write_costs(tmp_path / "a", [1] * 5), write_costs(tmp_path / "b", [1] * 5, memory=None)
    assert len(draw(a, b).axes) == 2
    assert plot.main(["cost", str(a), str(b)]) == 0
    captured = capsys.readouterr()
    assert captured.err == f"plot.py: warning: {b}: summary.json holds no memory_bytes; time alone is drawn\n"
    path, *sentences = captured.out.splitlines()
    assert path == str(a / "figures" / "cost.png")
    assert sentences == [
        f"{a}: 1.000 ms a step, 32,000 tokens/s, 3.000 MiB allocated.",
        f"{b}: 1.000 ms a step, 32,000 tokens/s, no figure of memory.",
    ]


def test_a_run_of_few_steps_is_measured_by_all_of_them(tmp_path):
    cost = plot_cost.cost_of(write_costs(tmp_path / "a", [10, 20]), "a")
    assert cost.milliseconds == pytest.approx([10, 20])


def test_runs_that_do_not_say_enough_are_refused(tmp_path, fails):
    run = write_costs(tmp_path / "a", [1] * 5)
    assert "no such folder" in fails(2, "cost", tmp_path / "nowhere")
    whole = {name: (run / name).read_bytes() for name in ("config.toml", "summary.json", "metrics.jsonl")}
    for name, contents, code, part in [
        ("config.toml", b"[", 3, "config.toml"),
        ("config.toml", b"\xff", 3, "config.toml"),
        ("config.toml", b"model = 1\n", 3, "lacks"),
        ("config.toml", b"[model]\n[data]\nseq_len = 8\n[train]\nbatch = 0\nmicro_batch = 1\n", 3, "counts"),
        ("config.toml", b"[model]\n[data]\nseq_len = 1e9\n[train]\nbatch = 4\nmicro_batch = 1", 3, "counts"),
        ("metrics.jsonl", b'{"step": 1, "tokens": 32, "seconds": 1e300}\n', 3, "no step has"),
        ("metrics.jsonl", b'{"step": 1, "tokens": 64, "seconds": 1}\n', 3, "trained 64 tokens, and"),
        ("summary.json", b"[]", 3, "expected a JSON object"),
        ("summary.json", b'{"device": "cpu"}', 3, "lacks 'device_description'"),
        ("metrics.jsonl", b"", 3, "no step has 'step', 'tokens' and 'seconds'"),
        ("metrics.jsonl", b'{"step": 1, "tokens": 32, "seconds": "x"}\n', 3, "no step has"),
    ]:
        (run / name).write_bytes(contents)
        assert part in fails(code, "cost", run), contents
        (run / name).write_bytes(whole[name])
    (run / "summary.json").unlink()
    assert "has not finished" in fails(2, "cost", run)
