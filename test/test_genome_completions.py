"""scripts/genome_completions.py: its measures by hand, where it cuts prompts, and the file it writes."""

import json
import math
import sys

import numpy as np
import pytest

import fabricated_run
import genome_completions
import genome_measures
from conftest import REPOSITORY
from fabricated_run import write_run
from genome_measures import BASES, gc_content, matches, pearson_r
from prepared import write_shard
from shard_reader import open_shard

SCRIPT = REPOSITORY / "scripts" / "genome_completions.py"
RECORD = 120
CONFIG = {
    "model": {"vocab": 5},
    "data": {"source": "shards", "val": "genome/val_*.bin", "block": "crop", "record_tokens": RECORD},
}
# Stands in for the program: text i of a prompt is the prompt's own bases, turned by its seed.
PROGRAM = """#!{python}
import json, os, sys
value = dict(zip(sys.argv[2::2], sys.argv[3::2]))
if os.environ.get("BREAKS") == "code":
    sys.exit("error: out of memory")
new, seed, prompt = int(value["--tokens"]), int(value["--seed"]), value["--prompt"]
texts = []
for n in range(int(value["--samples"])):
    shift = (seed + n) % len(prompt)
    texts.append({{"text": ((prompt[shift:] + prompt) * new)[:new]}})
if os.environ.get("BREAKS") == "short":
    texts[0]["text"] = texts[0]["text"][1:]
open(value["--json"], "w").write("[" if os.environ.get("BREAKS") == "json" else json.dumps(texts))
open(value["--json"] + ".words", "w")
with open(os.environ["CALLS"], "a") as file:
    file.write(json.dumps(sys.argv[1:]) + "\\n")
"""


@pytest.fixture
def genome(tmp_path, rng, monkeypatch):
    """A run on a genome whose first validation shard has an N in every record but the last two."""
    (tmp_path / "genome").mkdir()
    tokens = rng.choice([0, 1, 2, 4], size=12 * RECORD)
    tokens[: 10 * RECORD : RECORD // 4] = BASES.index("N")
    write_shard(tmp_path / "genome" / "val_000000.bin", tokens)
    write_shard(tmp_path / "genome" / "val_000001.bin", rng.choice([0, 1, 2, 4], size=2 * RECORD))
    program = tmp_path / "program"
    program.write_text(PROGRAM.format(python=sys.executable))
    program.chmod(0o755)
    monkeypatch.setenv("TRAIN_GPT_GOAT", str(program))
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    return write_run(tmp_path / "runs" / "run", {"x": np.zeros(1, np.float32)}, CONFIG)


OPTIONS = ["--prompts", "3", "--prompt-length", "30", "--new", "40", "--samples", "2", "--seed", "5"]


def complete(run, *words, code=0):
    assert genome_completions.main([str(run), *map(str, words)]) == code
    return json.loads((run / "completions.json").read_text()) if code == 0 else None


def fails_with(capsys, code, *words):
    capsys.readouterr()
    assert genome_completions.main([str(word) for word in words]) == code, words
    captured = capsys.readouterr()
    assert captured.out == "" and len(captured.err.splitlines()) == 1, captured
    return captured.err


# The measures, by hand


def test_gc_content_is_the_share_in_each_window():
    assert gc_content("GATCCA", window=3) == pytest.approx([1 / 3, 1 / 3, 2 / 3, 2 / 3])
    assert gc_content("GNC", window=3) == pytest.approx([2 / 3])  # N is neither
    assert len(gc_content("A" * 200)) == 176
    assert gc_content("G" + "A" * 25) == pytest.approx([1 / 25, 0])


def test_pearson_r_by_hand_and_where_it_has_no_value():
    # Deviations (-1, 0, 1) and (-1, -1, 2): 3 / sqrt(2 * 6).
    assert pearson_r([1, 2, 3], [0, 0, 3]) == pytest.approx(3 / math.sqrt(12))
    assert pearson_r([1, 2, 3], [6, 4, 2]) == pytest.approx(-1)
    assert pearson_r([1, 2, 3], [5, 5, 5]) is None and pearson_r([5, 5], [1, 2]) is None


def test_matches_by_hand():
    assert matches("ACGT", "AGGN").tolist() == [True, False, True, False]
    found = genome_completions.compare("A" * 26 + "CG", ["A" * 26 + "CG", "A" * 26 + "TG"], seed=3)
    assert found["matches_by_position"] == [1.0] * 26 + [0.5, 1.0]
    assert [c["matches"] for c in found["completions"]] == [1.0, pytest.approx(27 / 28)]
    assert found["mean_matches"] == pytest.approx((1 + 27 / 28) / 2)
    assert [c["seed"] for c in found["completions"]] == [3, 4]
    assert found["completions"][0]["pearson_r"] == pytest.approx(1)


def test_a_constant_gc_content_gives_null_and_means_leave_it_out():
    truth = "G" * 20 + "A" * 20
    found = genome_completions.compare(truth, [truth, "T" * 40], seed=1)
    assert [c["pearson_r"] for c in found["completions"]] == [pytest.approx(1), None]
    assert found["mean_pearson_r"] == pytest.approx(1)
    assert genome_completions.compare("A" * 40, [truth], seed=1)["mean_pearson_r"] is None
    assert "null where one of them is constant" in genome_measures.DEFINITIONS["pearson_r"]


# The file


def test_prompts_and_truths_are_pieces_of_the_validation_data_without_n(genome, tmp_path, capsys):
    found = complete(genome, *OPTIONS)
    assert capsys.readouterr().out.splitlines()[0] == str(genome / "completions.json")
    assert (found["step"], found["samples"], found["window"], found["new"]) == (40, 2, 25, 40)
    assert found["temperature"] == 1 and found["evaluation"] is None
    calls = [json.loads(line) for line in (tmp_path / "calls").read_text().splitlines()]
    assert len(found["prompts"]) == len(calls) == 3
    pieces = set()
    for n, (entry, call) in enumerate(zip(found["prompts"], calls, strict=True)):
        tokens = open_shard(tmp_path / "genome" / entry["shard"]).tokens
        first, length = entry["position"], 30 + 40
        assert first // RECORD == (first + length - 1) // RECORD  # in one record
        bases = "".join(BASES[token] for token in tokens[first : first + length])
        assert entry["prompt"] + entry["truth"] == bases and "N" not in bases
        pieces |= {(entry["shard"], base) for base in range(first, first + length)}
        said = dict(zip(call[1::2], call[2::2], strict=True))
        assert call[0] == "sample" and said["--prompt"] == entry["prompt"]
        assert said["--checkpoint"] == str(genome / "checkpoints" / "step_00000040")
        assert (said["--tokenizer"], said["--temperature"], said["--tokens"]) == ("dna", "1", "40")
        assert (said["--seed"], said["--samples"]) == (str(5 + 2 * n), "2")  # no two texts share a seed
        for sample, completion in enumerate(entry["completions"]):
            assert completion["seed"] == 5 + 2 * n + sample
            assert completion["gc"] == pytest.approx(gc_content(completion["text"]))
            assert completion["pearson_r"] == pearson_r(gc_content(entry["truth"]), completion["gc"])
        assert entry["gc_truth"] == pytest.approx(gc_content(entry["truth"]))
    assert len(pieces) == 3 * 70  # none overlap
    everything = [completion for entry in found["prompts"] for completion in entry["completions"]]
    assert found["mean_matches"] == pytest.approx(np.mean([c["matches"] for c in everything]))
    assert found["mean_pearson_r"] == pytest.approx(np.mean([c["pearson_r"] for c in everything]))


def test_pieces_do_not_overlap(tmp_path, rng):
    write_shard(tmp_path / "val.bin", rng.choice([0, 1, 2, 4], size=260))
    shard = open_shard(tmp_path / "val.bin")
    for seed in range(10):
        starts = sorted(start for _, start in genome_completions.draw_places([shard], 260, 50, 3, seed))
        assert min(np.diff(starts)) >= 50 and starts[-1] + 50 <= 260


def test_the_seed_decides_which_pieces(genome):
    one, again, other = (complete(genome, *OPTIONS[:-1], seed) for seed in (5, 5, 6))
    assert one == again
    assert [p["prompt"] for p in one["prompts"]] != [p["prompt"] for p in other["prompts"]]


def evaluation_of(run, rows, step=40, **more):
    checkpoint = f"{run}/checkpoints/step_{step:08}"
    return {"checkpoint": checkpoint, "step": step, "train_length": 128, "results": rows} | more


def test_the_loss_is_that_of_this_checkpoint_by_the_recut_protocol(genome, capsys):
    def rows(nll):
        return [{"length": 128, "nll": nll}]

    answers = [{"length": 128, "nll": 0.1, "span_token_accuracy": 1.0}]
    other = genome.parent / "other"
    mine = evaluation_of(genome, rows(1.25), protocol="recut")
    several = [
        evaluation_of(other, rows(0.5), protocol="recut"),
        evaluation_of(genome, answers, task="niah"),
        evaluation_of(genome, rows(0.75), step=30, protocol="recut"),
        evaluation_of(genome, rows(1.0), protocol="paper"),
        mine,
    ]
    (genome / "eval.json").write_text(json.dumps({"evaluations": several}))
    assert complete(genome, *OPTIONS)["evaluation"]["nll"] == 1.25
    (genome / "eval.json").write_text(json.dumps({"evaluations": several[:1] * 2}))  # of one run: this, moved
    assert complete(genome, *OPTIONS)["evaluation"]["nll"] == 0.5
    (genome / "eval.json").write_text(json.dumps({"evaluations": several[:2]}))
    capsys.readouterr()
    assert complete(genome, *OPTIONS)["evaluation"] is None
    assert "holds no perplexity of this run" in capsys.readouterr().err


def test_the_loss_is_that_of_the_evaluation_at_the_training_length(genome, capsys):
    rows = [{"length": n, "nll": nll} for n, nll in ((64, 1.5), (128, math.log(4)), (256, 1.25))]
    evaluation = evaluation_of(genome, rows)
    (genome / "eval.json").write_text(json.dumps(evaluation))
    found = complete(genome, *OPTIONS)["evaluation"]
    assert found == {"step": 40, "length": 128, "nll": math.log(4), "bits_per_base": pytest.approx(2)}
    (genome / "eval.json").write_text(json.dumps(evaluation | {"step": 30, "train_length": 100}))
    assert complete(genome, *OPTIONS)["evaluation"]["length"] == 64
    assert "is of step 30, the completions are of step 40" in capsys.readouterr().err
    rows[0]["nll"] = None
    (genome / "eval.json").write_text(json.dumps(evaluation | {"train_length": 64}))
    assert complete(genome, *OPTIONS)["evaluation"] is None
    (genome / "eval.json").write_text("{}")
    assert "not what train_gpt_goat eval --json writes" in fails_with(capsys, 3, genome, *OPTIONS)


def test_validation_data_are_found_as_the_program_finds_them(genome, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir("/")  # "genome/val_*.bin" is in a folder above the run
    complete(genome, *OPTIONS)
    (tmp_path / "genome").rename(tmp_path / "elsewhere")
    assert "no file matches" in fails_with(capsys, 3, genome, *OPTIONS)
    for name in ("current", "started"):
        (tmp_path / name / "genome").mkdir(parents=True)
    real = genome_completions.open_checkpoint

    def started_there(*words):
        checkpoint = real(*words)
        checkpoint.state["data"] = {"working_folder": str(tmp_path / "started"), "tokenizer": "dna"}
        return checkpoint

    monkeypatch.setattr(genome_completions, "open_checkpoint", started_there)
    (tmp_path / "elsewhere" / "val_000001.bin").rename(tmp_path / "started" / "genome" / "val_1.bin")
    assert {p["shard"] for p in complete(genome, *OPTIONS[2:], "--prompts", 1)["prompts"]} == {"val_1.bin"}
    (tmp_path / "elsewhere" / "val_000000.bin").rename(tmp_path / "current" / "genome" / "val_0.bin")
    monkeypatch.chdir(tmp_path / "current")
    assert {p["shard"] for p in complete(genome, *OPTIONS[2:], "--prompts", 1)["prompts"]} == {"val_0.bin"}


def test_wrong_use_exits_with_2(genome, tmp_path, capsys):
    text = write_run(tmp_path / "text", {"x": np.zeros(1, np.float32)}, CONFIG | {"model": {"vocab": 256}})
    for words, part in [
        ([], "RUN"),
        ([tmp_path / "nowhere"], "no such folder"),
        ([text], "is no model of genomes"),
        ([genome, "--new", "25"], "--new"),  # a window and one more, or r has no meaning
        ([genome, "--samples", "0"], "expected 1 to"),
        ([genome, "--prompts", "x"], "--prompts"),
        ([genome, "--prompts", "9" * 5000], "--prompts"),
        ([genome, "--prompt-length", "81", "--new", "40"], "more than a record"),
        ([genome, "--out", tmp_path], "is a folder"),
    ]:
        assert part in fails_with(capsys, 2, *words), words


def test_data_that_cannot_be_used_exit_with_3(genome, tmp_path, capsys):
    assert "without N, apart from each other" in fails_with(
        capsys, 3, genome, "--prompt-length", "60", "--new", "60", "--prompts", "5"
    )
    path = tmp_path / "genome" / "val_000001.bin"
    whole = path.read_bytes()
    for contents, part in [
        (b"x", "too few for the header"),
        (bytes(4) + whole[4:], "not a shard of tokens"),
        (whole[:-2], "do not fit the"),
        (whole[:1024] + b"\x07\x00" * (2 * RECORD), "is no base"),
    ]:
        path.write_bytes(contents)
        (tmp_path / "genome" / "val_000000.bin").unlink(missing_ok=True)
        assert part in fails_with(capsys, 3, genome, *OPTIONS[2:], "--prompts", "1")
    assert not (genome / "completions.json").exists()


def test_a_program_that_fails_is_said_and_leaves_the_old_file(genome, tmp_path, capsys, monkeypatch):
    (genome / "completions.json").write_text("old")
    for breaks, code, part in [
        ("code", 1, "sample ended with code 1: error: out of memory"),
        ("short", 3, "did not write 2 continuations of 40 bases"),
        ("json", 3, "did not write"),
    ]:
        monkeypatch.setenv("BREAKS", breaks)
        assert part in fails_with(capsys, code, genome, *OPTIONS)
    monkeypatch.setenv("TRAIN_GPT_GOAT", str(tmp_path / "nothing"))
    assert "TRAIN_GPT_GOAT" in fails_with(capsys, 1, genome, *OPTIONS)
    assert (genome / "completions.json").read_text() == "old"


def test_the_program_itself_continues_prompts(binary, run_binary, run_command, tmp_path, monkeypatch, rng):
    (tmp_path / "data").mkdir()
    tokens = np.tile([0, 1, 2, 4], 60 * 10)
    for name in ("train_000000.bin", "val_000000.bin"):
        write_shard(tmp_path / "data" / name, tokens)
    settings = {
        "model.layers": 1, "model.heads": 1, "model.width": 32, "data.seq_len": 32,
        "data.record_tokens": 240,
        "data.train": tmp_path / "data/train_*.bin", "data.val": tmp_path / "data/val_*.bin",
        "train.steps": 2, "train.batch": 2, "train.micro_batch": 2, "train.warmup": 1, "eval.tokens": 64,
    }  # fmt: skip
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    run = tmp_path / "run"
    run_binary("--config", "genome_25m", "--out", run, *words)
    monkeypatch.setenv("TRAIN_GPT_GOAT", str(binary))
    run_command([sys.executable, SCRIPT, run, "--prompts", "1", "--prompt-length", "20", "--new", "30"])
    (entry,) = json.loads((run / "completions.json").read_text())["prompts"]
    assert (entry["prompt"] + entry["truth"]) in "ACGT" * 30
    texts = [completion["text"] for completion in entry["completions"]]
    assert len(set(texts)) == 3 and all(len(text) == 30 and set(text) <= set(BASES) for text in texts)
