"""The same run by one rank and by several: bit for bit where each adds a power of two of leaves."""

import pytest

from many_ranks import SMALL, command, many, metrics, require_same  # noqa: F401  a fixture
from prepared import write_shard

VARIANTS = {
    "GPT blocks with the prior": dict(train__clip=0.5, prior__lr_scale=3),
    "llama blocks with rotary positions": dict(
        model__block="llama", model__attention="rope", model__tied="false", model__layers=2, model__vocab=2048
    ),
    "several buckets": dict(distributed__bucket_mib=1, model__width=64, model__vocab=8192, train__steps=12),
    "no clipping, recomputed blocks": dict(train__clip=0, model__recompute="block", model__layers=3),
    "one leaf a micro-batch": dict(train__batch=4),
}


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS.keys())
def test_by_one_two_and_four_ranks(many, variant):
    common = many(SMALL, **variant)
    steps = variant.get("train__steps", 20)

    def due(interval):
        return [step for step in range(1, steps + 1) if step % interval == 0 or step == steps]

    assert [line["step"] for line in common["metrics"]] == due(1)
    assert [line["step"] for line in common["metrics"] if "val_loss" in line] == due(7)
    assert list(common["states"]) == [f"step_{step:08d}" for step in due(9)]
    assert len(set(common["files"].values())) == len(common["files"])


def test_clipping_counts_in_some_steps_and_not_in_others(many):
    norms = sorted(line["grad_norm"] for line in many(SMALL, ranks=(2, 4))["metrics"])
    assert norms[0] < norms[-1]
    clip = (norms[9] + norms[10]) / 2
    clipped = many(SMALL, "--overwrite", ranks=(1, 2, 4), train__clip=clip)
    assert any(line["grad_norm"] > clip for line in clipped["metrics"])


def test_twelve_leaves_by_one_and_three_ranks(many):
    many(SMALL, ranks=(1, 3), train__batch=24, distributed__leaves=12)


def tokens_of(rng, count):
    """Tokens of which every tenth begins a block."""
    tokens = rng.integers(1, 4096, count)
    tokens[::10] = 0
    return tokens


@pytest.fixture
def shards(rng, tmp_path):
    """Two sets of training shards and one for validation: /a/*.bin, /b/*.bin, /val/*.bin."""
    for name, counts in (("a", (960, 480)), ("b", (720,)), ("val", (240, 240))):
        (tmp_path / name).mkdir()
        for i, count in enumerate(counts):
            write_shard(tmp_path / name / f"{i}.bin", tokens_of(rng, count))
    return tmp_path


@pytest.mark.parametrize("block", ["bos", "window", "crop"])
@pytest.mark.parametrize("mixed", [False, True], ids=["one set", "a mixture"])
def test_shards(many, shards, block, mixed):
    a, b = shards / "a" / "*.bin", shards / "b" / "*.bin"
    training = {"data__mixture": f"0.7 {a}, 0.3 {b}"} if mixed else {"data__train": a}
    common = many(
        SMALL,
        data__source="shards",
        data__val=shards / "val" / "*.bin",
        data__block=block,
        data__bos=0,
        data__record_tokens=40,
        train__steps=12,
        **training,
    )
    sizes = sorted(len(state["data"]["training"]) for state in common["states"].values())
    assert sizes == [3 if mixed else 2] * len(sizes)


@pytest.mark.parametrize("loss", ["span", "mixed"])
def test_losses_of_answers_are_normalised_over_the_whole_step(many, loss):
    many(
        SMALL,
        data__source="passkey",
        data__passkey__digits=3,
        data__seq_len=96,
        model__width=32,
        train__loss=loss,
        train__steps=12,
        eval__tokens=5 * 96,
    )


def skipped(common, reason):
    return [line["step"] for line in common["metrics"] if line.get("skipped") == reason]


def test_spikes_are_skipped_by_all_ranks(many):
    common = many(SMALL, train__spike_z=1, train__spike_window=3, train__max_skips=30, train__steps=30)
    spikes = skipped(common, "spike")
    assert 0 < len(spikes) < 27, spikes
    assert common["states"]["step_00000030"]["skipped_updates"] == len(spikes)


def test_losses_that_are_not_finite_end_all_ranks_after_the_same_step(many):
    wild = dict(train__lr=10, train__min_lr=10, train__clip=0, train__weight_decay=100, train__steps=60)
    common = many(SMALL, train__max_skips=4, code=1, **wild)
    steps = skipped(common, "not finite")
    assert steps == list(range(steps[0], steps[0] + 4))
    assert list(common["states"])[-1] == f"step_{steps[-1]:08d}"


def test_a_validation_of_fewer_sequences_than_ranks(many):
    assert many(SMALL, eval__tokens=16, train__steps=3)["metrics"][-1]["val_loss"] > 0


@pytest.mark.parametrize("ranks", [1, 2])
def test_threads_of_a_rank_do_not_change_the_cpus_bits(run_binary, run_command, binary, tmp_path, ranks):
    """Also where a matrix product is large enough to be split among threads."""
    wide = dict(model__width=96, model__heads=4, data__seq_len=64, eval__tokens=3 * 64, train__steps=5)
    folders = []
    for threads in (1, 2, 3):
        folders.append(tmp_path / f"{threads}_threads")
        run_command(
            ["env", f"OMP_NUM_THREADS={threads}", binary, *command(folders[-1], ranks, SMALL, **wide)]
        )
    require_same(folders)


@pytest.mark.parametrize(
    ("ranks", "changes"),
    [
        (3, dict(distributed__leaves=3, train__micro_batch=2)),
        (3, dict(distributed__leaves=6, train__micro_batch=1)),
        (1, dict(distributed__leaves=1, train__micro_batch=4)),
        (2, dict(distributed__leaves=0, train__micro_batch=3)),
        (4, dict(distributed__leaves=12, train__micro_batch=1)),
    ],
)
def test_other_splits_of_the_batch_give_the_same_losses_up_to_rounding(run_binary, tmp_path, ranks, changes):
    settings = SMALL | {"train.batch": 12, "distributed.leaves": 1, "train.micro_batch": 1}
    run_binary(*command(tmp_path / "one", 1, settings))
    run_binary(*command(tmp_path / "other", ranks, settings, **changes))
    for one, other in zip(metrics(tmp_path / "one"), metrics(tmp_path / "other"), strict=True):
        assert other["loss"] == pytest.approx(one["loss"], abs=1e-5)
        assert other["grad_norm"] == pytest.approx(one["grad_norm"], rel=1e-4)
        assert other.get("val_loss") == pytest.approx(one.get("val_loss"), abs=1e-5)
