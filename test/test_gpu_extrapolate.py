"""Part extrapolate of dev/gpu_check.sh: its arithmetic, the text that it takes and carries along, and what it
notices, with a program that pretends to train on a GPU and on the simulated one."""

import functools
import json
import os
import re
import shutil
import subprocess
import sys

import pytest

from conftest import REPOSITORY
from pretended_gpu import environment_of, gpu_check, outcomes
from prepared import shard

sys.path.insert(0, str(REPOSITORY / "dev"))
import gpu_extrapolate  # noqa: E402
import gpu_table  # noqa: E402
from random_shards import write_shard  # noqa: E402

LENGTHS = [2048, 4096, 8192, 16384, 32768]


def write_text(folder, train=100_000, val=70_000, **meta):
    """Shards as prepare.py writes them, with this in their meta.json."""
    folder.mkdir()
    write_shard(folder / "train_000000.bin", [1] * train)
    write_shard(folder / "val_000000.bin", [2] * val)
    if meta:
        (folder / "meta.json").write_text(json.dumps(meta))
    return folder


@pytest.fixture(scope="module")
def extrapolated(pretended_gpu, tmp_path_factory):
    """extrapolated(RUN=TROUBLE, ...) is the part on a GPU that is none, with these troubles of its runs."""
    text = write_text(tmp_path_factory.mktemp("of") / "text", command="prepare.py text of.txt")

    @functools.cache
    def check(**planted):
        planted = {f"extrapolate_{run}": trouble.replace("_", " ") for run, trouble in planted.items()}
        (pretended_gpu / "planted.json").write_text(json.dumps(planted))
        out = tmp_path_factory.mktemp("out") / "check.json"
        words = ("extrapolate", "--bin", pretended_gpu, "--data", text, "--out", out)
        return gpu_check(*words, environment=environment_of(pretended_gpu))

    return check


def test_both_train_what_the_slower_has_time_for_and_are_evaluated_far_beyond(extrapolated, tmp_path, capsys):
    code, printed, check = extrapolated()
    assert code == 0, printed
    assert set(outcomes(check).values()) == {"passed"}
    plan = check["extrapolate_plan"]["result"]
    assert plan["slower"] == "extrapolate_speed_goat"  # 400,000 tokens/s, 105 s, 16 * 2,048 tokens a step
    assert (plan["steps"], plan["warmup"], plan["tokens"]) == (1281, 128, 1281 * 32768)
    result = check["extrapolation"]["result"]
    assert result["lengths"] == LENGTHS and result["eval_tokens"] == 2 * 32768
    assert result["text"]["made_by"] == "prepare.py text of.txt"
    assert result["epochs"] == pytest.approx(1281 * 32768 / 100_000)
    goat, rope = (result["models"][f"extrapolate_{name}"] for name in ("goat", "rope"))
    for model in (goat, rope):
        assert model["tokens"] == plan["tokens"] and model["loss"] < model["first_loss"]
    for name in ("goat", "rope"):
        assert check[f"extrapolate_{name}"]["result"]["steps"] == 1281
    assert (goat["tokens_per_second"], rope["tokens_per_second"]) == pytest.approx((400e3, 500e3))
    assert goat["perplexity"] == [50] * 5 and goat["flat"] and goat["ratio"] == 1
    assert rope["perplexity"] == [50, 100, 200, 400, 800] and not rope["flat"] and rope["ratio"] == 16
    row = "| rope | 41,975,808 | 2.731 | 500,000 | 50.00 | 100.00 | 200.00 | 400.00 | 800.00 | 16.000, not"
    assert row in printed and "| 50.00 | 1.000, flat |" in printed
    (tmp_path / "check.json").write_text(json.dumps(check))
    gpu_table.main([str(tmp_path / "check.json")])
    assert row in capsys.readouterr().out


TROUBLES = [
    ({"goat": "not_finite"}, "extrapolate_goat", "extrapolate_goat: the loss of step 3 is not finite"),
    ({"goat": "not_finite"}, "extrapolation", "extrapolate_goat did not train to its end"),
    ({"rope": "breaks"}, "extrapolate_rope", "error: out of memory on the device"),
    ({"rope": "breaks"}, "extrapolation", "extrapolate_rope did not train to its end"),
    ({"goat": "diverges"}, "extrapolation",
     "extrapolate_goat: training did not take: loss 4.0010 at step 1, and 5.2690 in the mean of the last"),
    ({"rope_eval": "breaks"}, "extrapolate_rope_eval", "error: out of memory on the device"),
    ({"rope_eval": "breaks"}, "extrapolation", "extrapolate_rope was not evaluated to its end"),
    ({"speed_rope": "breaks"}, "extrapolate_plan", "extrapolate_speed_rope did not run: its speed was not"),
]  # fmt: skip


@pytest.mark.parametrize(("planted", "section", "words"), TROUBLES)
def test_trouble_of_a_run_fails_the_check_with_words(extrapolated, planted, section, words):
    code, printed, check = extrapolated(**planted)
    assert code == 1
    assert re.search(f"FAILED {section} .*{words}", printed), printed
    assert "Traceback" not in printed and "## Beyond the training length" not in printed
    assert "result" not in check[section]


def test_what_follows_a_run_that_failed_is_not_run(extrapolated):
    _, _, check = extrapolated(goat="not_finite")
    found = outcomes(check)
    assert found["extrapolate_goat_eval"] == "extrapolate_goat failed"
    assert found["extrapolate_rope_eval"] == "passed"
    _, _, check = extrapolated(speed_rope="breaks")
    assert outcomes(check)["extrapolation"] == "extrapolate_plan failed" and "extrapolate_goat" not in check


def test_without_text_the_part_is_not_run_and_says_what_makes_it(pretended_gpu, tmp_path):
    words = ("extrapolate", "--bin", pretended_gpu, "--out", tmp_path / "check.json")
    code, printed, check = gpu_check(*words, environment=environment_of(pretended_gpu))
    assert code == 0
    found = outcomes(check)
    assert found.keys() == {"extrapolate_text"}
    assert "not run extrapolate_text: no text: --data FOLDER names its shards" in printed
    assert "data/prepare.py text --tokenizer gpt2 --max-tokens 30000000 --out FOLDER FILE..." in printed


def test_text_that_was_packed_with_the_programs_is_taken(pretended_gpu, tmp_path):
    """Here it is too little for the longest evaluation."""
    write_text(pretended_gpu / "data", val=65536)
    try:
        words = ("extrapolate", "--bin", pretended_gpu, "--out", tmp_path / "check.json")
        code, printed, check = gpu_check(*words, environment=environment_of(pretended_gpu))
    finally:
        shutil.rmtree(pretended_gpu / "data")
    assert code == 1
    assert re.search(r"FAILED extrapolate_text .*/data: 65,536 tokens for validation; two sequ", printed)
    assert outcomes(check) == {"extrapolate_text": "failed", "extrapolation": "extrapolate_text failed"}


def refused(function, *arguments):
    with pytest.raises(gpu_extrapolate.Unfit) as complaint:
        function(*arguments)
    return str(complaint.value)


def test_text_that_will_not_do_is_refused(tmp_path):
    text = functools.partial(gpu_extrapolate.text, longest=32768)
    assert "there is no such folder" in refused(text, tmp_path / "nowhere")
    good = write_text(tmp_path / "good", val=65537, vocab=50257, command="made")
    tokens = {"train_tokens": 100_000, "val_tokens": 65537}
    assert text(good) == tokens | {"folder": str(good), "made_by": "made"}
    assert "65,536 tokens for validation" in refused(text, write_text(tmp_path / "short", val=65536))
    assert "tokens of bytes, of 256 kinds" in refused(
        text, write_text(tmp_path / "bytes", vocab=256, tokenizer="bytes")
    )
    assert "meta.json: is damaged" in refused(text, damaged(tmp_path, "meta.json", b"{"))
    header = (good / "train_000000.bin").read_bytes()[:1024]
    cut = damaged(tmp_path, "train_000000.bin", header)
    assert "1,024 bytes, and 201,024 by its header" in refused(text, cut)
    assert "no shard of 16-bit tokens" in refused(text, damaged(tmp_path, "val_000000.bin", header[:1000]))
    assert "no shard of 16-bit tokens" in refused(text, damaged(tmp_path, "val_000000.bin", bytes(1024)))
    (good / "val_000000.bin").unlink()
    assert "has no val_*.bin" in refused(text, good)


def damaged(folder, name, content):
    """Text of which that file has other bytes."""
    shutil.rmtree(folder / "damaged", ignore_errors=True)
    text = write_text(folder / "damaged")
    (text / name).write_bytes(content)
    return text


def test_tokens_to_evaluate_are_what_there_is_or_what_there_is_time_for():
    """At 5 lengths up to 16 T: (5 * 2 / 3 + 31 / 3) / 3 = 4.556 times what training on a token takes."""
    count = gpu_extrapolate.tokens_to_evaluate
    assert count(LENGTHS, 3_000_000, 400e3, 12) == 32 * 32768  # 12 s * 400,000 / 4.556 = 1,053,659
    assert count(LENGTHS, 3_000_000, 800e3, 12) == 64 * 32768
    assert count(LENGTHS, 99_000, 400e3, 12) == 3 * 32768
    assert count(LENGTHS, 99_000, 100, 12) == 32768


def test_too_slow_a_gpu_is_told_of(tmp_path):
    for name, value in {
        "text": {"train_tokens": 10**6, "val_tokens": 10**5},
        "goat": {"tokens_per_second": 100},
        "rope": {"tokens_per_second": 90},
    }.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(value))
    text, *runs = (tmp_path / f"{name}.json" for name in ("text", "goat", "rope"))
    plan = functools.partial(gpu_extrapolate.plan, text, runs, lengths=[8, 32], eval_seconds=1)
    assert "rope: 90 tokens/s are 19 steps of 45 tokens in 9.9 s; 20 are" in refused(plan, 45, 9.9)
    assert plan(45, 10)["steps"] == 20 and plan(45, 10)["warmup"] == 2
    plan = functools.partial(gpu_extrapolate.plan, text, runs, 45, 10, eval_seconds=1)
    assert "length 12 does not divide 32" in refused(plan, [8, 12, 32])


@pytest.fixture
def ended(tmp_path):
    """ended(changes of what a run left) is a run and its plan."""
    plan = {"steps": 2, "tokens": 64, "lengths": [16, 32], "eval_tokens": 32, "text": {}, "epochs": 1}

    def write(lines=(5.0, 4.0), perplexities=(9, 9.4), tokens=(32, 32)):
        run = tmp_path / "run"
        run.mkdir(exist_ok=True)
        run.with_name("run.json").write_text(json.dumps({"tokens_per_second": 7}))
        steps = [{"step": i + 1, "tokens": 32 * (i + 1), "loss": loss} for i, loss in enumerate(lines)]
        (run / "metrics.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))
        rows = zip(plan["lengths"], perplexities, tokens)
        results = [{"length": length, "perplexity": p, "tokens": n} for length, p, n in rows]
        (run / "eval.json").write_text(json.dumps({"results": results}))
        return plan, [run]

    return write


def test_the_table_is_of_runs_and_evaluations_as_they_were_planned(ended):
    table = gpu_extrapolate.table
    (model,) = table(*ended())["models"].values()
    assert model == {
        "tokens": 64,
        "first_loss": 5,
        "loss": 4,
        "tokens_per_second": 7,
        "perplexity": [9, 9.4],
        "ratio": pytest.approx(9.4 / 9),
        "flat": True,
    }
    assert not table(*ended(perplexities=(9, 9.5)))["models"]["run"]["flat"]
    assert "ended at step 1 with 32 tokens, and not at 2 with 64" in refused(table, *ended(lines=(5.0,)))
    assert "did not take: loss 4.0000 at step 1" in refused(table, *ended(lines=(4.0, 4.0)))
    assert "the perplexity at length 32 is not finite" in refused(table, *ended(perplexities=(9, None)))
    assert "evaluated tokens 32 at 16, 16 at 32; wanted 32" in refused(table, *ended(tokens=(32, 16)))


def test_packing_takes_the_shards_and_what_belongs_to_them(tmp_path, monkeypatch):
    text = write_text(tmp_path / "text", vocab=50257)
    (text / "tokenizer").mkdir()
    (text / "tokenizer/vocab.bpe").write_text("of GPT-2")
    (text / "notes.txt").write_text("of the user")
    into = tmp_path / "bin/data"
    gpu_extrapolate.pack(text, into, 32768)
    assert sorted(str(file.relative_to(into)) for file in into.rglob("*") if file.is_file()) == [
        "meta.json", "tokenizer/vocab.bpe", "train_000000.bin", "val_000000.bin"
    ]  # fmt: skip
    assert (shard(into / "val_000000.bin") == shard(text / "val_000000.bin")).all()
    monkeypatch.setattr(gpu_extrapolate, "PACKED", 169_999)
    assert "170,000 tokens; at most 169,999 are carried" in refused(gpu_extrapolate.pack, text, into, 32768)


@pytest.fixture
def packaging(tmp_path):
    """packaging(WORDS...) runs a copy of dev/gpu_package.sh, with a cmake that compiles nothing."""
    tree = tmp_path / "tree"
    (tree / "dev").mkdir(parents=True)
    for name in ("gpu_package.sh", "gpu_extrapolate.py", "gpu_run.py", "random_shards.py"):
        shutil.copy(REPOSITORY / "dev" / name, tree / "dev")
    (tmp_path / "path").mkdir()
    built = "test/{kernel_tests,nccl_ranks} dev/gpu_kernels train_gpt_goat"
    for name, lines in {
        "cmake": f"""echo "$@" >>words
            mkdir -p build-gpu/build/{{test,dev}}
            for to in {built}; do cp "$(command -v bash)" build-gpu/build/$to; done""",
        "git": "echo 123456789abc",
    }.items():
        (tmp_path / "path" / name).write_text(f"#!/bin/bash\n{lines}\n")
        (tmp_path / "path" / name).chmod(0o755)

    def run(*words):
        environment = os.environ | {"PATH": f"{tmp_path / 'path'}:{os.environ['PATH']}"}
        words = [tree / "dev/gpu_package.sh", *words]
        ran = subprocess.run(words, capture_output=True, text=True, timeout=100, env=environment)
        return ran.returncode, ran.stdout + ran.stderr, tree

    return run


def test_the_package_has_the_text_that_is_named(packaging, tmp_path):
    text = write_text(tmp_path / "text")
    code, printed, tree = packaging("-DGOAT_LTO=ON", "--data", text, "-DGOAT_WERROR=ON")
    assert code == 0, printed
    packed = tree / "build-gpu/bin"
    assert (packed / "commit").read_text() == "123456789abc\n" and (packed / "train_gpt_goat").exists()
    assert (packed / "data/val_000000.bin").read_bytes() == (text / "val_000000.bin").read_bytes()
    words = (tree / "words").read_text()
    assert "-DGOAT_LTO=ON -DGOAT_WERROR=ON\n" in words and "--data" not in words


def test_a_package_of_text_that_will_not_do_is_refused_before_anything_is_built(packaging, tmp_path):
    earlier = tmp_path / "tree/build-gpu/bin/commit"
    earlier.parent.mkdir(parents=True)
    earlier.touch()
    code, printed, tree = packaging("--data", write_text(tmp_path / "text", val=9))
    assert code == 1 and "text: 9 tokens for validation; two sequences of 32,768" in printed
    assert not (tree / "words").exists() and earlier.exists()
    code, printed, tree = packaging("--data")
    assert code != 0 and "--data needs a folder of shards" in printed and not (tree / "words").exists()


def test_the_rehearsal_on_the_simulated_gpu_passes(wrapped, tmp_path):
    """On text of which half the tokens are the same, so that training takes."""
    text = tmp_path / "text"
    text.mkdir()
    for split in ("train", "val"):
        write_shard(text / f"{split}_000000.bin", [token for i in range(2000) for token in (7, i % 50)])
    words = ("--device", "simt", "--data", text, "--bin", wrapped(""), "--out", tmp_path / "check.json")
    code, printed, check = gpu_check("extrapolate", *words)
    assert code == 0, printed
    assert set(outcomes(check).values()) == {"passed"}
    result = check["extrapolation"]["result"]
    assert result["lengths"] == [32, 64, 128, 256, 512] and result["eval_tokens"] % 512 == 0
    for model in result["models"].values():
        assert model["tokens"] == result["steps"] * 32 and 1 < model["perplexity"][0] < 50257
