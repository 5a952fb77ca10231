"""dev/scaling_model.py: transfers and steps against sums by hand, parameters against the program's."""

import itertools
import json
import re
import sys
from dataclasses import replace

import pytest

from conftest import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "dev"))
import predict_step  # noqa: E402
import scaling_layout  # noqa: E402
import scaling_model  # noqa: E402
import scaling_step  # noqa: E402
from scaling_layout import MIB, default_bucket_bytes, groups_of, model_buckets  # noqa: E402
from scaling_model import INPUTS, MODELS, inputs_of, row_of, simulated, table_of  # noqa: E402
from scaling_step import Bucket, Cluster, Options, Work, steady_step, step_without_overlap  # noqa: E402

TIMES = {name for name, entry in INPUTS.items() if entry.unit.startswith("us")}
NO_LATENCY = dict.fromkeys(TIMES, 0.0)
KERNELS = predict_step.Kernels([json.loads(path.read_text()) for path in predict_step.DEFAULT])
PRESETS = {name: scaling_model.preset_of(name, KERNELS) for name in MODELS}
GB = 10**9


def bucket(first, last, reduce=0.0, gather=0.0, update=0.0, level="nvlink", ready=None):
    stages = [((level, ms),) if ms else () for ms in (reduce, gather)]
    return Bucket(first, last, last if ready is None else ready, *stages, squares=0.0, update=update)


def layout_bucket(elements, value_bytes=2):
    return scaling_layout.Bucket(elements, value_bytes, 0, 0)


def milliseconds(stages):
    return sum(ms for _, ms in stages)


# The schedule


def test_one_bucket_of_two_units_is_exposed_on_both_sides():
    """Weights 2 ms after the update; forward 2 + 1, backward 3 + 4; sum 5; update 1."""
    work = Work(forward=(1, 2), backward=(3, 4), micro_batches=1)
    step = steady_step(work, [bucket(0, 1, reduce=5, gather=2, update=1)], 0.0, streams=1)
    assert step.total == 2 + 3 + 7 + 5 + 1
    assert step.tail == 5 and step.gathered == (2,)


def test_a_bucket_leaves_when_its_last_unit_is_done():
    """Unit 0 is done at 6, unit 1 at 10. The first sum runs behind unit 1; the second is the tail, and waits
    for the first where that takes longer."""
    work = Work(forward=(1, 2), backward=(3, 4), micro_batches=1)
    for first, total in ((3, 15), (6, 17)):
        buckets = [bucket(0, 0, reduce=first), bucket(1, 1, reduce=5)]
        assert steady_step(work, buckets, 0.0, streams=1).total == total
    # A bucket that unit 1 reaches into is not ready before it.
    buckets = [bucket(0, 1, reduce=3), bucket(1, 1, reduce=5)]
    assert steady_step(work, buckets, 0.0, streams=1).total == 10 + 3 + 5


def test_the_forward_pass_waits_bucket_by_bucket_for_weights_that_leave_embedding_first():
    """Updates of 1 ms: that of unit 1, which the forward pass needs first, ends at 1, its weights come at 4,
    2 after both updates; those of unit 0 at 9, 7 after. Unit 1 then runs from 2 to 4, unit 0 from 7 to 8."""
    work = Work(forward=(1, 2), backward=(3, 4), micro_batches=1)
    buckets = [bucket(0, 0, gather=5, update=1), bucket(1, 1, gather=3, update=1)]
    step = steady_step(work, buckets, 0.0, streams=1)
    assert step.gathered == (7, 2)
    assert step.total == 8 + 7 + 2


def test_only_the_last_micro_batch_sends_and_the_first_one_waits():
    work = Work(forward=(1, 2), backward=(3, 4), micro_batches=3)
    buckets = [bucket(0, 0, reduce=4), bucket(1, 1, reduce=5, gather=2)]
    assert steady_step(work, buckets, 0.25, streams=1).total == 2 + 3 * 10 + 5 + 0.25


def test_two_streams_run_the_levels_of_two_buckets_side_by_side():
    stages = [(("nvlink", 4), ("network", 3))] * 2
    assert scaling_step.in_a_row(stages, streams=1) == 14
    assert scaling_step.in_a_row(stages, streams=2) == 4 + 4 + 3


def test_a_gradient_that_is_complete_early_leaves_no_tail():
    work = Work(forward=(1, 2), backward=(3, 4), micro_batches=1)
    assert steady_step(work, [bucket(1, 1, reduce=4, ready=0)], 0.0, streams=1).tail == 0


def random_step(rng):
    units, size = rng.integers(1, 6), rng.integers(1, 9)
    work = Work(tuple(rng.uniform(0, 3, units)), tuple(rng.uniform(0, 6, units)), int(rng.integers(1, 4)))
    ends = [sorted(rng.integers(0, units, 2)) for _ in range(size)]
    buckets = [
        replace(
            bucket(first, last),
            reduce=tuple((level, rng.uniform(0, 3)) for level in ("nvlink", "network")),
            gather=tuple((level, rng.uniform(0, 3)) for level in ("network", "nvlink")),
            update=rng.uniform(0, 1),
        )
        for first, last in ends
    ]
    return work, buckets


def test_overlap_hides_something_but_never_more_than_the_windows(rng):
    """The windows: the last backward pass, the first forward pass, the updates. A second stream may hide
    transfers behind each other as well."""
    for _ in range(300):
        work, buckets = random_step(rng)
        one, two = (steady_step(work, buckets, 0.1, streams) for streams in (1, 2))
        apart = step_without_overlap(work, buckets, 0.1, streams=1)
        windows = sum(work.forward) + sum(work.backward) + sum(b.update for b in buckets)
        assert max(one.total, two.total) <= apart + 1e-9
        assert apart - one.total <= windows + 1e-9
        least = work.total + sum(b.update for b in buckets) + 0.1
        assert min(one.total, two.total) >= least - 1e-9


def test_steps_that_alternate_count_by_their_mean(monkeypatch):
    steps = itertools.cycle(
        scaling_step.Step(total, 0.0, (arrival,), ()) for total, arrival in ((3, 1), (5, 2))
    )
    monkeypatch.setattr(scaling_step, "one_step", lambda *_: next(steps))
    assert steady_step(Work((1,), (1,), 1), [bucket(0, 0)], 0.0, 1).total == 4


# Transfers


def test_bandwidth_alone():
    """1 GB of gradients on 16 GPUs in 2 nodes, without latencies."""
    x, item = inputs_of(NO_LATENCY), layout_bucket(GB // 4)
    node, nodes = Cluster(8, 8), Cluster(16, 8)
    reduce, gather = scaling_step.reduce_stages, scaling_step.gather_stages
    ring = Options(reduce="nccl")
    assert milliseconds(reduce(x, item, node, ring)) == pytest.approx(1e3 * (7 / 8 / 355 + 2 / 8 / 2950))
    assert milliseconds(reduce(x, item, nodes, ring)) == pytest.approx(1e3 * (15 / 16 / 330 + 2 / 16 / 2950))
    one = 1e3 * (7 / 8 / 320 + (1 + 1 / 8) / 2950)
    assert milliseconds(reduce(x, item, node, Options())) == pytest.approx(one)
    # Half of the bytes cross the network if all ranks send to all at once; that hides what stays inside.
    flat = 1e3 * (1 / 2 / 45 + (1 + 1 / 16) / 2950)
    assert milliseconds(reduce(x, item, nodes, Options(levels=1))) == pytest.approx(flat)
    second = 1e3 * (1 / 8 / 2 / 45 + (1 / 8 + 1 / 16) / 2950)
    stages = reduce(x, item, nodes, Options())
    assert [level for level, _ in stages] == ["nvlink", "network"]
    assert [ms for _, ms in stages] == pytest.approx([one, second])
    # Weights in bf16: half of the bytes, network first.
    stages = gather(x, item, nodes, Options())
    assert [level for level, _ in stages] == ["network", "nvlink"]
    assert [ms for _, ms in stages] == pytest.approx([1e3 / 2 / 8 / 2 / 45, 1e3 / 2 * 7 / 8 / 355])


def test_latency_alone():
    """Nothing to move: calls and steps. NCCL's ring has one step less than ranks, those between nodes
    slower; an all-to-all has one step."""
    x = inputs_of({"call": 8, "nvlink_step": 3, "network_step": 14, "peer": 1, "launch": 4, "pat_call": 1e6})
    item = layout_bucket(0)
    for cluster, ring, ordered, gather in (
        (Cluster(8, 8), 8 + 7 * 3 + 4, 8 + 3 + 7 + 4, 8 + 7 * 3),
        (Cluster(32, 8), 8 + 28 * 3 + 3 * 14 + 4, (8 + 3 + 7 + 4) + (8 + 14 + 3 + 4), 8 + 3 * 14 + 8 + 7 * 3),
    ):
        stages = scaling_step.reduce_stages(x, item, cluster, Options(reduce="nccl"))
        assert milliseconds(stages) == pytest.approx(ring / 1e3)
        assert milliseconds(scaling_step.reduce_stages(x, item, cluster, Options())) == pytest.approx(
            ordered / 1e3
        )
        assert milliseconds(scaling_step.gather_stages(x, item, cluster, Options())) == pytest.approx(
            gather / 1e3
        )


def test_between_many_nodes_the_gather_takes_logarithmic_steps_where_that_is_faster():
    x = inputs_of({})
    small, large = 1 << 20, 1 << 30
    assert scaling_step.between_nodes(x, small, 64) == scaling_step.pat(x, small, 64)
    assert scaling_step.between_nodes(x, large, 8) == scaling_step.ring(x, large, 8, 8)
    only_latency = (8 + 6 * 14 / 3.5 + 64 * 2.8) / 1e3
    assert scaling_step.pat(x, 0, 64) == pytest.approx(only_latency)


@pytest.mark.parametrize("reduce", ["ordered", "nccl"])
def test_bf16_on_the_wire_halves_each_transfer_and_costs_a_cast(reduce):
    """In two levels two of them; NCCL's sum is copied in either case."""
    x, item = inputs_of(NO_LATENCY), layout_bucket(GB // 4)
    speed, added = (320, 1) if reduce == "ordered" else (355, 1 / 8)
    for cluster, casts, network in ((Cluster(8, 8), 1, 0), (Cluster(16, 8), 1 + 1 / 8, 1 / 8 / 2 / 45)):
        if reduce == "nccl" and network:
            continue
        f32, bf16 = (
            milliseconds(scaling_step.reduce_stages(x, item, cluster, Options(wire=wire, reduce=reduce)))
            for wire in ("f32", "bf16")
        )
        saved = (7 / 8 / speed + network) / 2 + (casts * added * 0.5 - casts * 1.5) / 2950
        assert f32 - bf16 == pytest.approx(1e3 * saved)


def test_the_report_is_one_ring_of_small_messages():
    x = inputs_of({"small_call": 7, "small_nvlink_step": 0.5, "small_network_step": 3})
    buckets = [layout_bucket(100 * scaling_layout.CHUNK)]
    size = 8 * (100 + 32 * 5)
    by_hand = (7 + 28 * 0.5 + 3 * 3) / 1e3 + size / (45 / 2 * 1e6)
    assert scaling_step.report(x, buckets, Cluster(32, 8)) == pytest.approx(by_hand)
    assert scaling_step.report(x, buckets, Cluster(1, 1)) == 0


def test_one_gpu_sends_nothing():
    x, preset = inputs_of({}), PRESETS["c4_125m"]
    row = row_of(x, preset, 1, Options())
    assert row["ring_ms"] == row["gather_ms"] == row["tail_ms"] == 0
    update = sum(b.update + b.squares for b in simulated(x, preset, 1, 128, Options())[1])
    assert row["exposed_ms"] == pytest.approx(update)


# What a GPU computes


def test_shares_of_units_are_those_of_the_timed_kernels():
    """By hand: operations of two layers that take 10 ms; the optimizer's do not count."""
    times = {"linear_forward qkv": 2, "attention_backward": 4, "embedding_backward": 1, "adamw": 50}
    times |= {"linear_forward head": 1, "cross_entropy_backward": 2}
    shares = scaling_model.shares_of(times, layers=2)
    assert shares["block"] == pytest.approx((0.1, 0.2))
    assert shares["embedding"] == pytest.approx((0, 0.1)) and shares["head"] == pytest.approx((0.1, 0.2))
    for preset in PRESETS.values():
        parts = preset.shares
        whole = sum(parts["embedding"] + parts["head"]) + preset.layers * sum(parts["block"])
        assert whole == pytest.approx(1)


def test_a_gpu_computes_at_the_goal_with_its_micro_batch_and_slower_with_less():
    x = inputs_of({})
    for name, preset in PRESETS.items():
        speed, micro_batch = INPUTS[f"{name}_speed"].value, int(INPUTS[f"{name}_micro_batch"].value)
        work = scaling_model.work_of(x, preset, 4 * micro_batch)
        assert work.micro_batches == 4
        assert 1e3 * 4 * micro_batch * preset.length / work.total == pytest.approx(speed)
        one = scaling_model.work_of(x, preset, 1)
        fixed = (preset.layers * x.kernels_of_block + x.kernels_outside) * x.kernel / 1e3
        whole = 1e3 * micro_batch * preset.length / speed
        assert one.total == pytest.approx(fixed + (whole - fixed) / micro_batch)


def test_micro_batches_are_equal():
    assert scaling_model.work_of(inputs_of({}), PRESETS["fineweb_1b"], 12).micro_batches == 2  # 6 and 6


# Layout


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("ranks", [1, 8, 64])
def test_parameters_and_bytes_are_the_programs_own(run_binary, name, ranks):
    words = ("--config", name, "--dry-run", "--device", "simt", "--ranks", ranks)
    printed = run_binary(*words, "--set", "train.micro_batch=1", code=3).stdout  # no data here
    config = PRESETS[name].config
    assert int(re.search(r"parameters, trainable +(\d+)", printed)[1]) == scaling_layout.trainable(config)
    buckets = model_buckets(config, ranks)
    values = sum(bucket.elements * bucket.value_bytes for bucket in buckets)
    gradients = 4 * sum(bucket.elements for bucket in buckets)
    parts = 4 * max(bucket.elements for bucket in buckets) if ranks > 1 else 0
    for what, size in (("parameters", values), ("gradients", gradients + parts)):
        value, unit = re.search(rf"memory: {what} +([\d.]+) ([KMG]iB)", printed).groups()
        rounding = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}[unit]
        assert size / rounding == pytest.approx(float(value), abs=0.051), what


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("ranks", [2, 8, 128, 512])
def test_buckets_cover_each_group_once_and_know_their_units(name, ranks):
    config = PRESETS[name].config
    layers = config["model"]["layers"]
    assert default_bucket_bytes(ranks) == max(64, 2 * ranks) * MIB
    for group in groups_of(config):
        buckets = scaling_layout.buckets_of(group, ranks, default_bucket_bytes(ranks))
        row = ranks * scaling_layout.CHUNK
        assert group.elements <= sum(b.elements for b in buckets) < group.elements + row
        assert all(b.elements % row == 0 for b in buckets)
        assert all(b.elements == buckets[0].elements for b in buckets[:-1])
        assert buckets[0].first_unit == group.ends[0][0] and buckets[-1].last_unit == group.ends[-1][0]
        for before, after in zip(buckets, buckets[1:]):
            assert before.first_unit <= before.last_unit <= after.first_unit <= after.last_unit
            assert after.first_unit - before.last_unit <= 1
    matrices = groups_of(config)[0]
    assert matrices.ends[-1][0] == layers + 1 and matrices.ends[0][0] == 1  # blocks, then the embedding


def test_units_of_a_range():
    group = scaling_layout.Group(2, ((1, 100), (2, 150), (4, 1000)))
    assert group.units_of(0, 100) == (1, 1)
    assert group.units_of(99, 101) == (1, 2)
    assert group.units_of(100, 5000) == (2, 4)
    assert group.units_of(150, 151) == (4, 4)


# Rows


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("gpus", [8, 64, 512])
def test_slower_hardware_never_makes_a_step_shorter(name, gpus):
    preset = PRESETS[name]
    sequences = scaling_model.sequences_of(preset, gpus)
    for options in (Options(), Options(wire="bf16", streams=2), Options(reduce="nccl", levels=1)):
        total = simulated(inputs_of({}), preset, gpus, sequences, options)[3].total
        for input_name, entry in INPUTS.items():
            if entry.unit in ("GB/s", "GB/s a GPU"):
                changes = {input_name: entry.value / 3}
            elif input_name in TIMES - {"kernel"}:
                changes = {input_name: entry.value * 3}
            else:
                continue
            slower = simulated(inputs_of(changes), preset, gpus, sequences, options)[3].total
            assert slower >= total - 1e-9, changes


def test_what_limits_a_row_is_what_would_shorten_it_most():
    preset = PRESETS["fineweb_1b"]
    assert row_of(inputs_of({}), preset, 8, Options())["limit"].startswith("compute (then: ")
    limits = {
        "network bandwidth": {"network_gpu": 5},
        "latency": {"network_step": 1000, "pat_call": 1e5},
        "NVLink bandwidth": {"nvlink_all_to_all": 20},
        "too few tokens a GPU": {"kernel": 40},
    }
    for what, changes in limits.items():
        assert row_of(inputs_of(changes), preset, 64, Options())["limit"].startswith(what), what
    c4 = row_of(inputs_of({}), PRESETS["c4_125m"], 64, Options())
    gain = c4["gains"]["embedding tail"]
    assert 0 < gain and (1 - gain) * c4["step_ms"] >= c4["compute_ms"]


@pytest.mark.parametrize(
    ("name", "gpus", "compute", "ring", "ordered", "tokens"),
    [
        ("c4_125m", 8, 60, 1.5, 1.5, 4.3e6),
        ("c4_125m", 64, 9.3, None, 1.8, 25e6),
        ("c4_125m", 128, 5.9, None, 2.1, 36e6),
        ("c4_125m", 512, 19, None, None, 207e6),
        ("fineweb_1b", 8, 445, 14, 15, 0.59e6),
        ("fineweb_1b", 64, 59, 22, 14, 4.3e6),
        ("fineweb_1b", 128, 31, 22, 14, 7.8e6),
        ("fineweb_1b", 512, 124, None, 16, 33e6),
    ],
)
def test_an_estimate_by_hand_agrees_within_30_percent(name, gpus, compute, ring, ordered, tokens):
    """Sums of bytes over bandwidths, in which NVLink and network work at the same time. None: what it leaves
    out costs more (docs/scaling.md)."""
    row = row_of(inputs_of({}), PRESETS[name], gpus, Options(streams=2))
    assert row["compute_ms"] == pytest.approx(compute, rel=0.3)
    assert row["tokens_per_second"] == pytest.approx(tokens, rel=0.3)
    assert ring is None or row["ring_ms"] == pytest.approx(ring, rel=0.3)
    assert ordered is None or row["ordered_two_levels_ms"] == pytest.approx(ordered, rel=0.3)


def test_efficiency_is_against_one_gpu_and_the_presets_batch():
    rows = table_of(inputs_of({}), PRESETS["c4_125m"], (1, 8), Options())
    alone, eight = (row["tokens_per_second"] for row in rows)
    assert rows[0]["efficiency"] == 1 and rows[1]["efficiency"] == pytest.approx(eight / alone / 8)


def output_of(capsys, *words):
    scaling_model.main([str(word) for word in words])
    return capsys.readouterr().out


def test_measured_runs_stand_beside_the_model(capsys, tmp_path):
    """Those of several GPUs and of the same batch alone."""
    gpu, none = "NVIDIA H100, 580", "none: rehearsed on the simulated GPU"
    run = {"batch": 128, "tokens_per_second": 4.0e6}
    checks = {
        "gpu_a": {
            "gpu": gpu,
            "c4_125m": {"exit": 0, "result": run},
            "c4_125m_8_gpus": {"exit": 0, "result": run},
        },
        "gpu_b": {"gpu": gpu, "c4_125m_64_gpus": {"exit": 1, "errors": "out of memory"}},
        "gpu_c": {"gpu": none, "c4_125m_64_gpus": {"exit": 0, "result": run}},
        "gpu_d": {"gpu": gpu, "c4_125m_64_gpus": {"exit": 0, "result": run | {"batch": 256}}},
    }
    for name, check in checks.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(check))
    words = ("--preset", "c4_125m", "--gpus", "1,8,64")
    printed = output_of(capsys, *words, "--results", tmp_path)
    assert "A model: no run" not in printed
    cells = [line.split(" | ") for line in printed.splitlines() if line.startswith("| ")]
    column = cells[0].index("measured tokens/s")
    assert [row[column] for row in cells[1:]] == ["-", "4.0 M", "-"]
    printed = output_of(capsys, *words)  # dev/results has none
    assert (
        "measured tokens/s" not in printed and "A model: no run on several GPUs has been measured" in printed
    )


def test_inputs_come_from_the_command_line_and_from_a_file(capsys, tmp_path):
    (tmp_path / "cluster.toml").write_text("network_gpu = 22.5\ngpus_per_node = 4\n")
    words = ("--preset", "c4_125m", "--gpus", "16", "--set-from", tmp_path / "cluster.toml")
    output_of(capsys, *words, "--set", "network_gpu=11", "--json", tmp_path / "rows.json")
    told = json.loads((tmp_path / "rows.json").read_text())
    assert told["inputs"]["network_gpu"]["value"] == 11 and told["inputs"]["gpus_per_node"]["value"] == 4
    assert told["inputs"]["nvlink_ring"] | {"value": 0} == {
        "value": 0,
        "unit": "GB/s",
        "source": INPUTS["nvlink_ring"].source,
    }
    (row,) = told["rows"]
    default = row_of(inputs_of({}), PRESETS["c4_125m"], 16, Options())
    assert row["gpus"] == 16 and row["step_ms"] > default["step_ms"]
    printed = output_of(capsys, "--inputs", "--set", "peer=2.5")
    assert "| peer | 2.5 | us a rank |" in printed and len(printed.splitlines()) == 2 + len(INPUTS)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--set", "warp=9"], "there is no input warp: --inputs lists them"),
        (["--set", "peer=few"], "--set peer=few: NAME=VALUE with a number"),
        (["--set", "peer=-1"], "input peer is -1.0: a number of at least 0"),
        (["--gpus", "12"], "12 GPUs are no whole nodes of 8"),
        (["--gpus", "64", "--sequences", "100"], "100 sequences a step cannot be shared equally by 64 GPUs"),
        (["--set-from", "/nowhere.toml"], "/nowhere.toml"),
    ],
)
def test_wrong_words_are_refused(words, said):
    with pytest.raises(SystemExit, match=f"scaling_model: .*{re.escape(said)}"):
        scaling_model.main(words)


def commands_and_tables():
    """(command, the text that follows it up to the next heading) of docs/scaling.md."""
    text = (REPOSITORY / "docs/scaling.md").read_text()
    return re.findall(
        r"```sh\n(dev/scaling_model\.py[^\n]*)\n```\n(.*?)(?=\n## |\n```sh|\Z)", text, re.DOTALL
    )


def test_the_tables_of_the_page_are_what_the_commands_print(capsys):
    found = commands_and_tables()
    assert len(found) >= 3
    for command, text in found:
        printed = output_of(capsys, *command.split()[1:])
        tables = [line for line in printed.splitlines() if line.startswith("|")]
        assert tables == [line for line in text.splitlines() if line.startswith("|")], command
