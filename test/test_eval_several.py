"""`eval` of several runs and by both protocols: which tokens each protocol takes, on an example that was
computed by hand; and that one command gives what each run and protocol alone gives."""

import json
import subprocess

import numpy as np
import pytest

from conftest import REPOSITORY  # noqa: F401  scripts/ becomes importable
from prepared import write_shard
from run_writer import write_run
from test_eval import MODEL, some_text
from test_retrieval import TINY, flags

# Bits that token v costs after token u, by (v - u) mod 4. After BOS each costs 2.
BITS = (1, 2, 3, 3)
BOS = 4
WIDTH, HIDDEN = 8, 16


def table_model():
    """The tensors of a model whose losses are BITS. The embedding of u is a multiple of unit vector u, which
    RMSNorm makes sqrt(WIDTH) long, and no block adds to it. The head holds the logarithms of the
    probabilities."""
    bits = np.full((BOS + 1, BOS + 1), 200.0)  # nothing is ever followed by BOS
    for u in range(BOS + 1):
        for v in range(BOS):
            bits[u, v] = 2 if u == BOS else BITS[(v - u) % 4]
    head = np.zeros((BOS + 1, WIDTH))
    head[:, : BOS + 1] = -np.log(2) * bits.T / np.sqrt(WIDTH)
    zeros = {f"attn.{name}": (WIDTH, WIDTH) for name in "qkvo"}
    zeros |= {f"mlp.{name}": (HIDDEN, WIDTH) for name in ("gate", "up")} | {"mlp.down": (WIDTH, HIDDEN)}
    tensors = {"embedding.weight": 1000 * np.eye(BOS + 1, WIDTH), "head.weight": head}
    tensors |= {f"blocks.0.{name}.weight": np.zeros(shape) for name, shape in zeros.items()}
    tensors |= {name: np.ones(WIDTH) for name in ("blocks.0.norm1.weight", "blocks.0.norm2.weight")}
    tensors["final_norm.weight"] = np.ones(WIDTH)
    return [(name, list(t.shape), lambda t=t: t.astype(np.float32)) for name, t in tensors.items()]


@pytest.fixture
def bits_of(tmp_path, run_binary):
    """bits_of(tokens, block, *options): by both protocols, {(protocol, length): (the row of the JSON file,
    [sequences, length] bits of each token)}."""

    def evaluate(tokens, block, *options):
        write_shard(tmp_path / "tokens.bin", tokens)
        shard = str(tmp_path / "tokens.bin")
        model = {"block": "llama", "attention": "none", "layers": 1, "heads": 1}
        sizes = {"width": WIDTH, "ff_width": HIDDEN, "vocab": BOS + 1}
        data = {"source": "shards", "train": shard, "val": shard}
        config = {
            "model": model | sizes | {"tied": False},
            "data": data | {"block": block, "bos": BOS, "seq_len": 2},
            "train": {"steps": 1, "warmup": 0},
        }
        run = tmp_path / f"table_{block}"
        if not run.exists():
            write_run(run, config, table_model(), "", {})
        out, nll = tmp_path / "eval.json", tmp_path / "nll.npy"
        words = ("--protocol", "both", "--json", out, "--per-token", nll, *options)
        run_binary("eval", "--checkpoint", run, *words)
        return {
            (evaluation["protocol"], row["length"]): (row, np.load(row["per_token"]) / np.log(2))
            for evaluation in json.loads(out.read_text())["evaluations"]
            for row in evaluation["results"]
        }

    return evaluate


def test_seven_tokens_by_hand(bits_of):
    # After BOS. Length 2: |0 1|1 3|0 2|, and the last 2 is left out; length 3: |0 1 1|3 0 2|.
    tokens = [0, 1, 1, 3, 0, 2, 2]
    found = bits_of(tokens, "bos", "--lengths", "2,3")
    assert list(found) == [("recut", 2), ("recut", 3), ("paper", 2), ("paper", 3)]
    for protocol in ("recut", "paper"):  # there are too few for the protocols to differ
        row, bits = found[protocol, 2]
        assert bits == pytest.approx(np.array([[2, 2], [2, 3], [2, 3]]), abs=1e-4)
        assert row["nll"] == pytest.approx(14 / 6 * np.log(2), abs=1e-5)
        row, bits = found[protocol, 3]
        assert bits == pytest.approx(np.array([[2, 2, 1], [2, 2, 3]]), abs=1e-4)
        assert row["nll"] == pytest.approx(12 / 6 * np.log(2), abs=1e-5)
    # After the token before: 0>1 1>1 1>3 3>0 0>2 2>2, however they are cut.
    for (_, length), (row, bits) in bits_of(tokens, "window", "--lengths", "2,3").items():
        assert bits == pytest.approx(np.array([2, 1, 3, 2, 3, 1]).reshape(-1, length), abs=1e-4)
        assert row["nll"] == pytest.approx(2 * np.log(2), abs=1e-5)


def test_the_paper_takes_100_sequences_and_recut_the_same_tokens(bits_of):
    # 200 tokens of |0 1|, then 121 of |2 0|, of which the last is one too many for lengths 2 and 4.
    tokens = [0, 1] * 100 + [2, 0] * 60 + [2]
    found = bits_of(tokens, "bos", "--lengths", "4,2")
    first = {2: [2, 2], 4: [2, 2, 3, 2]}  # |0 1| and |0 1 0 1|
    then = {2: [2, 3], 4: [2, 3, 3, 3]}  # |2 0| and |2 0 2 0|
    for protocol, length, sequences in [
        ("recut", 2, (100, 60)),
        ("recut", 4, (50, 30)),
        ("paper", 2, (100, 0)),  # the second part is never seen
        ("paper", 4, (50, 30)),  # 80 sequences are all that there are
    ]:
        row, bits = found[protocol, length]
        want = np.array([first[length]] * sequences[0] + [then[length]] * sequences[1])
        assert bits == pytest.approx(want, abs=1e-4)
        assert (row["sequences"], row["tokens"]) == (sum(sequences), length * sum(sequences))
        assert row["nll"] == pytest.approx(want.mean() * np.log(2), abs=1e-5)
    assert found["recut", 2][0]["nll"] == pytest.approx(700 / 320 * np.log(2), abs=1e-5)
    assert found["paper", 2][0]["nll"] == pytest.approx(2 * np.log(2), abs=1e-5)
    assert found["paper", 4][0]["nll"] == pytest.approx(780 / 320 * np.log(2), abs=1e-5)
    few = bits_of(tokens, "bos", "--lengths", "4,2", "--tokens", 11)  # for recut alone
    assert [few["recut", length][0]["sequences"] for length in (4, 2)] == [2, 4]
    assert [few["paper", length][0]["sequences"] for length in (4, 2)] == [80, 100]


@pytest.fixture(scope="module")
def runs(tmp_path_factory, binary):
    """{name: folder}: two of text with other attentions, one of text at another length, a copy mixture, and a
    task."""
    folder = tmp_path_factory.mktemp("runs")
    rng = np.random.default_rng(1)
    write_shard(folder / "tokens.bin", some_text(rng, 24 * 120 + 7, 50))
    shards = {"data.source": "shards", "data.train": folder / "tokens.bin", "data.val": folder / "tokens.bin"}
    text = MODEL | {"train.steps": 6}
    settings = {
        "goat": text | shards | {"checkpoint.interval": 3},
        "rope": text | shards | {"model.attention": "rope", "model.layers": 1},
        "short": text | shards | {"data.seq_len": 12, "train.seed": 3},
        "copies": text,
        "niah": TINY | {"train.steps": 6},
    }
    for name, changes in settings.items():
        preset = "niah" if name == "niah" else "copy_mixture"
        command = [binary, "--config", preset, "--device", "cpu", "--out", folder / name, *flags(changes)]
        subprocess.run(command, check=True, capture_output=True)
    return {name: folder / name for name in settings}


@pytest.fixture
def evaluate(runs, run_binary, tmp_path):
    """evaluate(names, *options): the JSON file, without the words that made it, and the output."""

    def run(names, *options):
        path = tmp_path / "eval.json"
        done = run_binary("eval", "--checkpoint", *(runs[name] for name in names), "--json", path, *options)
        found = json.loads(path.read_text())
        assert found.pop("arguments")[0] == "eval"
        return found, done.stdout

    return run


def table_of(printed, title):
    """The rows of a table of the comparison, in words; the first are the lengths."""
    lines = printed[printed.index(title) :].split("\n\n")[0].splitlines()[1:]
    assert max(map(len, lines)) <= 100
    return [line.split() for line in lines]


def test_several_runs_of_one_command_are_each_what_it_alone_is(runs, evaluate, tmp_path):
    options = ("--lengths", "24,96", "--per-token", tmp_path / "nll.npy")
    together, printed = evaluate(["rope", "goat"], *options)
    assert list(together) == ["evaluations"]
    losses = {}
    for name, found in zip(["rope", "goat"], together["evaluations"], strict=True):
        alone, printed_alone = evaluate([name], *options)
        for row, row_alone in zip(found["results"], alone["results"], strict=True):
            file = row.pop("per_token")
            assert file == str(tmp_path / f"nll_{name}_{row['length']}.npy")
            losses[name, row["length"]] = np.load(file)
            one = np.load(row_alone.pop("per_token"))
            assert np.array_equal(losses[name, row["length"]], one)  # bit for bit
        assert found == alone and found["checkpoint"].startswith(str(runs[name]))
        assert printed_alone in printed
    assert not np.array_equal(losses["goat", 24], losses["rope", 24])
    wanted = [
        [name, *(f"{row['perplexity']:.3f}" for row in found["results"])]
        for name, found in zip(["rope", "goat"], together["evaluations"], strict=True)
    ]
    assert table_of(printed, "perplexity by length, protocol recut\n") == [["24", "96"], *wanted]


def test_both_protocols_of_one_command_are_each_what_it_alone_is(evaluate, tmp_path):
    options = ("--lengths", "12,24", "--per-token", tmp_path / "nll.npy")
    together, printed = evaluate(["goat"], *options, "--protocol", "both")
    for protocol, found in zip(["recut", "paper"], together["evaluations"], strict=True):
        alone, printed_alone = evaluate(["goat"], *options, "--protocol", protocol)
        for row, row_alone in zip(found["results"], alone["results"], strict=True):
            file = row.pop("per_token")
            assert file == str(tmp_path / f"nll_{protocol}_{row['length']}.npy")
            assert np.array_equal(np.load(file), np.load(row_alone.pop("per_token")))
        assert found == alone and found["protocol"] == protocol
        assert printed_alone in printed
        values = [f"{row['perplexity']:.3f}" for row in alone["results"]]
        title = f"perplexity by length, protocol {protocol}\n"
        assert table_of(printed, title) == [["12", "24"], ["goat", *values]]
    recut, paper = ([row["sequences"] for row in found["results"]] for found in together["evaluations"])
    assert (recut, paper) == ([240, 120], [100, 100])


def test_runs_come_in_their_order_each_at_its_own_length_recut_before_paper(runs, evaluate):
    found, printed = evaluate(["short", "copies", "goat"], "--protocol", "both")
    told = [
        (each["checkpoint"], each["protocol"], [row["length"] for row in each["results"]])
        for each in found["evaluations"]
    ]
    assert told == [
        (str(runs[name] / "checkpoints/step_00000006"), protocol, [length])
        for name, length in [("short", 12), ("copies", 24), ("goat", 24)]
        for protocol in ("recut", "paper")
    ]
    rows = table_of(printed, "perplexity by length, protocol paper (of different data, see above)\n")
    assert [[row[0], row.index("-")] for row in rows[1:]] == [["short", 2], ["copies", 1], ["goat", 1]]


def test_text_and_tasks_side_by_side_each_with_the_options_that_fit_it(runs, evaluate, tmp_path):
    shared = ("--lengths", "66,72")
    files = ("--per-token", tmp_path / "nll.npy", "--data", tmp_path / "t.bin")
    text = ("--tokens", 1600, "--protocol", "both", *files)
    task = ("--samples", 3, "--depths", "0,0.7")
    write_shard(tmp_path / "t.bin", some_text(np.random.default_rng(2), 2000, 50))
    found, printed = evaluate(["niah", "goat"], *shared, *text, *task)
    first, *others = found["evaluations"]
    assert first == evaluate(["niah"], *shared, *task)[0]
    alone = evaluate(["goat"], *shared, *text)[0]["evaluations"]
    for one, other in zip(others, alone, strict=True):
        for row, row_alone in zip(one["results"], other["results"], strict=True):
            names = (row.pop("per_token"), row_alone.pop("per_token"))
            assert [name.split("/")[-1] for name in names] == [
                f"nll_goat_{one['protocol']}_{row['length']}.npy",
                f"nll_{one['protocol']}_{row['length']}.npy",
            ]
        assert one == other and str(tmp_path / "t.bin") in one["data"]
    shares = {row["length"]: [] for row in first["results"]}
    for row in first["results"]:
        shares[row["length"]].append(row["span_token_accuracy"])
    rows = table_of(printed, "niah: answer tokens that are right, by length\n")
    assert rows == [["66", "72"], ["niah", *(f"{100 * np.mean(cell):.1f}%" for cell in shares.values())]]
    assert [row[0] for row in table_of(printed, "perplexity by length, protocol paper\n")[1:]] == ["goat"]


def test_what_cannot_be_is_refused_before_anything_is_computed(runs, run_binary, tmp_path):
    write_shard(tmp_path / "few.bin", [1, 2, 3])
    (tmp_path / "folder").mkdir()
    before, nll = sorted(tmp_path.rglob("*")), tmp_path / "nll"
    few = ["--data", tmp_path / "few.bin"]
    last = runs["goat"] / "checkpoints" / "step_00000006"
    for code, names, options, words in [
        (3, ["goat", tmp_path / "none"], [], [str(tmp_path / "none"), "no such file"]),
        (2, ["goat", "rope", "goat"], [], ["same checkpoint", "once"]),
        (2, ["goat", last], [], [str(last), "same checkpoint"]),
        (3, ["goat", "short"], [*few, "--lengths", "2,4"], ["3 tokens", "length 4"]),
        (3, ["goat", "rope"], ["--data", tmp_path / "none*.bin"], ["none*.bin", "no file matches"]),
        (2, ["copies", "niah"], [*few, "--lengths", "66"], ["--data", "copy_mixture"]),
        (2, ["goat", "niah"], ["--lengths", "24"], [str(runs["niah"]), "length 24", "too short"]),
        (2, ["goat", "rope"], ["--tokens", "12"], [str(runs["goat"]), "--tokens 12"]),
        (2, ["goat", "rope"], ["--tokens", "96", "--protocol", "paper"], ["--tokens", "--protocol"]),
        (2, ["goat"], ["--protocol", "all"], ["all", "recut, paper or both"]),
        (2, ["goat", "copies"], ["--samples", "3"], ["--samples", "passkey and niah"]),
        (2, ["goat", "rope"], ["--depths", "0.5"], ["--depths", "passkey and niah"]),
        (2, ["niah"], ["--protocol", "recut"], ["--protocol", "retrieval"]),
        (2, ["niah"], ["--protocol", "both"], ["--protocol", "retrieval"]),
        (2, ["goat", "rope"], ["--per-token", "/dev/null"], ["/dev/null", "is not a file"]),
        (2, ["goat", "rope"], ["--per-token", tmp_path / "none" / "n.npy"], ["--per-token", "no folder"]),
        (2, ["goat", "rope"], ["--per-token", nll, "--json", tmp_path / "nll_rope"], ["same file"]),
        (2, ["goat", "rope"], ["--json", tmp_path / "folder"], ["--json", "is a folder"]),
        (2, ["goat", "rope"], ["--precision", "fp64"], ["--precision", "fp64"]),
    ]:
        checkpoints = [runs.get(name, name) for name in names]
        done = run_binary("eval", "--checkpoint", *checkpoints, *options, code=code)
        for word in words:
            assert word in done.stderr, done.stderr
        assert done.stdout == "" and sorted(tmp_path.rglob("*")) == before, options


def test_two_checkpoints_of_a_run_are_named_by_their_steps(runs, run_binary, tmp_path):
    steps = [runs["goat"] / "checkpoints" / f"step_0000000{n}" for n in (3, 6)]
    words = ("--json", tmp_path / "eval.json", "--per-token", tmp_path / "nll.npy")
    printed = run_binary("eval", "--checkpoint", *steps, runs["rope"], *words).stdout
    rows = table_of(printed, "perplexity by length, protocol recut\n")[1:]
    assert [row[0] for row in rows] == ["goat/step_00000003", "goat/step_00000006", "rope"]
    assert len({row[1] for row in rows}) == 3
    evaluations = json.loads((tmp_path / "eval.json").read_text())["evaluations"]
    assert [(each["checkpoint"], each["step"]) for each in evaluations[:2]] == [
        (str(step), n) for step, n in zip(steps, (3, 6))
    ]
    names = ("nll_goat_step_00000003.npy", "nll_goat_step_00000006.npy", "nll_rope.npy")
    assert {path.name for path in tmp_path.glob("*.npy")} == set(names)


def test_runs_whose_names_are_alike_are_told_apart(runs, run_binary, tmp_path):
    (tmp_path / "1").mkdir()
    (tmp_path / "1/goat").symlink_to(runs["rope"])
    for name in ("1_goat", "other"):
        (tmp_path / name).symlink_to(runs["short"])
    words = ("--lengths", 24, "--tokens", 240, "--per-token", tmp_path / "nll.npy")
    printed = run_binary("eval", "--checkpoint", tmp_path / "1/goat", runs["goat"], *words).stdout
    parent = runs["goat"].parent.name
    names = [row[0] for row in table_of(printed, "perplexity by length, protocol recut\n")[1:]]
    assert names == ["1/goat", f"{parent}/goat"]
    files = {path.name for path in tmp_path.glob("*.npy")}
    assert files == {"nll_1_goat.npy", f"nll_{parent}_goat.npy"}
    alike = (tmp_path / "1/goat", tmp_path / "1_goat", runs["goat"])
    refused = run_binary("eval", "--checkpoint", *alike, *words, code=2)
    assert "nll_1_goat.npy" in refused.stderr and refused.stdout == ""


def test_what_is_finished_stays_when_a_later_run_fails(runs, evaluate, run_binary, tmp_path):
    model = {"block": "llama", "attention": "none", "layers": 1, "heads": 1, "tied": False}
    sizes = {"width": WIDTH, "ff_width": 2 * HIDDEN, "vocab": BOS + 1}  # not those of the tensors
    data = {"source": "copy_mixture", "seq_len": 24}
    config = {"model": model | sizes, "data": data, "train": {"steps": 1, "warmup": 0}}
    write_run(tmp_path / "misshapen", config, table_model(), "", {})
    alone, _ = evaluate(["goat"])
    file = tmp_path / "several.json"
    words = ["eval", "--checkpoint", runs["goat"], tmp_path / "misshapen", "--json", file]
    errors = run_binary(*words, code=3).stderr
    assert f"note: --checkpoint {tmp_path / 'misshapen'} was not evaluated to its end; {file} holds" in errors
    assert json.loads(file.read_text()) == {"evaluations": [alone], "arguments": list(map(str, words))}


def test_an_evaluation_says_its_precision_and_its_file_the_words_that_made_it(runs, run_binary, tmp_path):
    file = tmp_path / "eval.json"
    words = ["eval", "--checkpoint", str(runs["goat"]), "--json", str(file), "--precision", "bf16"]
    for protocol, several in (("recut", False), ("both", True)):
        run_binary(*words, "--protocol", protocol)
        found = json.loads(file.read_text())
        assert found["arguments"] == [*words, "--protocol", protocol]
        evaluations = found["evaluations"] if several else [found]
        assert {each["precision"] for each in evaluations} == {"bf16"}
        assert not several or "arguments" not in evaluations[0]
