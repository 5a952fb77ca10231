"""Exported and imported folders against `transformers` itself: losses of tokens, greedy text, tokenizers and
lm_eval. Needs .venv-hf, which scripts/setup.sh hf makes; without it all of this is skipped."""

import json
import os
import subprocess

import numpy as np
import pytest

import export_hf
import hf_models
import import_hf
from fabricated_hf import config_with
from hf_process import PEER, ask, needs_peer  # noqa: F401  a fixture
from prepared import write_shard
from test_train import flags

pytestmark = needs_peer

CLOSE = 1e-4  # nats a token
TEXT = "".join(
    f"{n} goats ate {n * n} hats; {n % 7} of them ate the coat of number {n * 37 % 101}.\n"
    for n in range(400)
)
TRAINED, LONG = 32, 128  # lengths
SETTINGS = {
    "model.layers": 2, "model.heads": 2, "model.width": 32, "data.seq_len": TRAINED, "data.val": "",
    "train.batch": 8, "train.steps": 60, "train.warmup": 5, "train.lr": 1e-2, "train.min_lr": 1e-3,
    "eval.tokens": 0, "log.interval": 1000, "prior.pos_rank": 3, "prior.abs_rank": 4,
    "prior.init": "random", "prior.sink_init_scale": 0.5,
}  # fmt: skip
VARIANTS = {
    "goat, free slope": {"prior.recency": "free"},
    "goat, softplus slope": {"prior.recency": "softplus", "prior.init": "alibi"},
    "goat, no slope, untied": {"prior.recency": "off", "model.tied": "false"},
    "goat, learned frequencies": {"prior.learned_frequencies": "true"},
    "goat, spare lanes, unscaled": {"prior.lane_dim": 10, "model.attn_scale": "none"},
    "goat, BOS": {"data.block": "bos", "data.bos": 10},
    "rope": {"model.attention": "rope", "model.rope_base": 100},
    "none": {"model.attention": "none"},
    "alibi": {"model.attention": "alibi"},
    "alibi of three heads, learned": {
        "model.attention": "alibi_learned", "model.heads": 3, "model.width": 36,
    },
    "rope in part": {"model.attention": "rope", "model.rope_fraction": 0.4},
    "rope, interpolated, BOS": {"model.attention": "rope_pi", "data.block": "bos", "data.bos": 10},
    "sinusoidal": {"model.attention": "sinusoidal"},
    "goat and rope in part": {"model.attention": "goat+rope", "model.rope_fraction": 0.5},
    "goat and interpolated rope": {"model.attention": "goat+rope_pi"},
    "goat with ALiBi's slopes": {"model.attention": "goat+alibi_learned", "prior.recency": "off"},
    "rope, ALiBi, both absolute": {"model.attention": "rope+alibi+sinusoidal+learned", "data.seq_len": 256},
    "goat, grouped heads, eps": {
        "model.heads": 4, "model.kv_heads": 2, "model.width": 64, "model.norm_eps": 1e-3,
    },
    "goat, no biases": {"model.bias": "false"},
    "goat, norms of q and k": {"model.qk_norm": "true"},
    "rope, one head of keys": {"model.attention": "rope", "model.kv_heads": 1, "model.norm_eps": 1e-2},
    "rope, norms of q and k": {"model.attention": "rope", "model.qk_norm": "true"},
    "llama, goat, biases": {"model.block": "llama", "model.bias": "true", "model.qk_norm": "true"},
    "forget": {"model.attention": "forget"},
    "goat and forget, grouped heads": {
        "model.attention": "goat+forget", "model.heads": 4, "model.kv_heads": 2, "model.width": 64,
    },
    "interpolated rope, norms, forget": {"model.attention": "rope_pi+forget", "model.qk_norm": "true"},
    "ALiBi and forget": {"model.attention": "forget+alibi"},
    "llama, rope, forget": {
        "model.block": "llama", "model.attention": "rope+forget", "model.kv_heads": 1, "model.bias": "true",
    },
    "llama, goat": {"model.block": "llama", "model.ff_width": 40},
    "llama, none": {"model.block": "llama", "model.attention": "none"},
    "llama, rope, unscaled": {"model.block": "llama", "model.attention": "rope", "model.attn_scale": "none"},
    "Llama": {"model.block": "llama", "model.attention": "rope", "model.rope_base": 500},
    "Llama, untied": {"model.block": "llama", "model.attention": "rope", "model.tied": "false"},
    "Llama, grouped heads, eps": {
        "model.block": "llama", "model.attention": "rope", "model.heads": 4, "model.kv_heads": 2,
        "model.norm_eps": 1e-3,
    },
    "Llama, biases": {"model.block": "llama", "model.attention": "rope", "model.bias": "true"},
    "llama, rope in part": {"model.block": "llama", "model.attention": "rope", "model.rope_fraction": 0.5},
    "llama, learned": {"model.block": "llama", "model.attention": "learned", "data.seq_len": 256},
    "GPT-2": {"model.attention": "learned", "data.seq_len": 256},
    "GPT-2, eps": {"model.attention": "learned", "data.seq_len": 256, "model.norm_eps": 1e-2},
    "GPT-2, untied, BOS": {
        "model.attention": "learned", "data.seq_len": 256, "model.tied": "false", "data.block": "bos",
        "data.bos": 10,
    },
}  # fmt: skip


def class_of(name):
    """The class of `transformers` that a model of VARIANTS becomes."""
    return {"Llama": "LlamaForCausalLM", "GPT-2": "GPT2LMHeadModel"}.get(
        name.split(",")[0], "GoatForCausalLM"
    )


@pytest.fixture(scope="module")
def shard(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "train_000000.bin"
    write_shard(path, list(TEXT.encode()))
    return path


@pytest.fixture(scope="module", params=VARIANTS)
def exported(request, binary, shard, tmp_path_factory):
    """(run, folder, settings) of each model."""
    folder = tmp_path_factory.mktemp("exported")
    settings = SETTINGS | {"data.train": shard} | VARIANTS[request.param]
    words = [binary, "--config", "shakespeare", "--device", "cpu", "--out", folder / "run", *flags(settings)]
    subprocess.run([str(word) for word in words], check=True, capture_output=True, timeout=300)
    assert export_hf.main([str(folder / "run"), str(folder / "out")]) == 0
    return folder / "run", folder / "out", settings


def blocks(length, count, settings):
    """The inputs and targets of the first `count` sequences that eval cuts out of the text, as lists."""
    data = np.frombuffer(TEXT.encode(), np.uint8).astype(int)
    if settings.get("data.block") == "bos":
        targets = data[: count * length].reshape(count, length)
        first = np.full((count, 1), settings["data.bos"])
        return np.hstack([first, targets[:, :-1]]).tolist(), targets.tolist()
    cut = data[: count * length + 1]
    return cut[:-1].reshape(count, length).tolist(), cut[1:].reshape(count, length).tolist()


def our_losses(run_binary, run, shard, folder, lengths, tokens):
    """By length, the loss of each token, [sequences, length]."""
    listed = ",".join(map(str, lengths))
    run_binary("eval", "--checkpoint", run, "--device", "cpu", "--data", shard, "--lengths", listed,
               "--tokens", tokens, "--per-token", folder / "nll.npy")  # fmt: skip
    one = len(lengths) == 1
    return {n: np.load(folder / ("nll.npy" if one else f"nll_{n}.npy")) for n in lengths}


def greedy(run_binary, run, folder, prompt, count):
    """The tokens that `sample` takes."""
    text = " ".join(map(str, prompt))
    run_binary("sample", "--checkpoint", run, "--device", "cpu", "--tokenizer", "ids", "--prompt", text,
               "--tokens", count, "--temperature", 0, "--json", folder / "text.json")  # fmt: skip
    return json.loads((folder / "text.json").read_text())[0]["tokens"]


def check_greedy(ask, folder, prompt, ours, theirs):
    """Equal, or parted where both tokens are equally likely to 1e-4 nats."""
    assert len(ours) == len(theirs)
    print("greedy: equal" if ours == theirs else "greedy: parted")
    parted = next((n for n, pair in enumerate(zip(ours, theirs, strict=True)) if pair[0] != pair[1]), None)
    if parted is None:
        return
    logits = ask("logits", folder=folder, tokens=prompt + ours[:parted])
    assert abs(logits[ours[parted]] - logits[theirs[parted]]) < CLOSE, f"token {parted}"
    assert parted >= 5, "greedy texts part so early that nothing was compared"


def check_losses(length, ours, theirs):
    difference = np.max(np.abs(theirs - ours))
    print(f"losses at length {length}: largest difference {difference:.1e}")
    assert difference < CLOSE
    assert ours.std() > 0.5, "the losses are too much alike for this test"


def prompt_of(settings):
    return ([settings["data.bos"]] if settings.get("data.block") == "bos" else []) + list(b"12 goats")


# From here to there


def test_losses_and_text_are_ours(exported, ask, shard, run_binary, tmp_path, request):
    run, folder, settings = exported
    described = ask("describe", folder=folder)
    assert described["class"] == class_of(request.node.callspec.params["exported"])
    assert (folder / "modeling_goat.py").exists() is (described["class"] == "GoatForCausalLM")
    ours = our_losses(run_binary, run, shard, tmp_path, (TRAINED, LONG), 4 * LONG)
    for length in (TRAINED, LONG):
        inputs, targets = blocks(length, len(ours[length]), settings)
        theirs = np.array(ask("losses", folder=folder, tokens=inputs, targets=targets))
        check_losses(length, ours[length], theirs)
    text = prompt_of(settings)
    prompt = text[1:] if settings.get("data.block") == "bos" else text  # sample adds the BOS token
    made = greedy(run_binary, run, tmp_path, prompt, 200)
    (theirs,) = ask("generate", folder=folder, prompts=[text], count=200)
    check_greedy(ask, folder, text, made, theirs)


CACHED = [
    "goat, free slope",
    "none",
    "llama, goat",
    "alibi of three heads, learned",
    "goat and interpolated rope",
    "rope, ALiBi, both absolute",
    "rope, one head of keys",
    "goat and forget, grouped heads",
    "interpolated rope, norms, forget",
]


@pytest.mark.parametrize("exported", CACHED, indirect=True)
def test_the_cache_padding_and_blocks_of_queries_change_nothing(exported, ask):
    _, folder, settings = exported
    tokens = list(TEXT.encode()[:70])
    whole = np.array(ask("chunked", folder=folder, tokens=tokens, cuts=[]))
    pieces = np.array(ask("chunked", folder=folder, tokens=tokens, cuts=[1, 2, 31, 60]))
    assert np.max(np.abs(pieces - whole)) < CLOSE
    if "goat" in settings.get("model.attention", "goat"):
        few = np.array(ask("blocks_of_queries", folder=folder, tokens=tokens, most=2 * 70 * 9))
        assert np.max(np.abs(few - whole)) < CLOSE
    inputs, targets = np.array(tokens[:-1]), np.array(tokens[1:])
    mean = np.mean(np.logaddexp.reduce(whole[:-1], axis=1) - whole[np.arange(len(inputs)), targets])
    assert ask("loss_of_labels", folder=folder, tokens=tokens) == pytest.approx(mean, abs=1e-5)

    shown = [n not in (0, 7, 30, 31, 69) for n in range(70)]
    holes = np.array(ask("shown", folder=folder, tokens=tokens, mask=shown))
    kept = [token for token, is_shown in zip(tokens, shown, strict=True) if is_shown]
    rest = np.array(ask("chunked", folder=folder, tokens=kept, cuts=[]))
    if "rope_pi" not in settings.get("model.attention", ""):  # its angles follow the number of columns
        assert np.max(np.abs(holes - rest)) < CLOSE

    prompts = [list(b"12 goats ate"), list(b"3"), list(b"90 goats ate 8100 hats; 6 of")]
    together = ask("generate", folder=folder, prompts=prompts, count=12)
    for prompt, made in zip(prompts, together, strict=True):
        (alone,) = ask("generate", folder=folder, prompts=[prompt], count=12, cache=False)
        check_greedy(ask, folder, prompt, alone, made)


FORGETTING = "goat and forget, grouped heads"


@pytest.mark.parametrize("exported", [FORGETTING], indirect=True)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_the_cache_loses_nothing_of_what_is_forgotten(exported, ask, dtype):
    _, folder, _ = exported
    assert ask("lost_in_the_cache", folder=folder, length=32768, dtype=dtype) < 1e-7


@pytest.mark.parametrize("exported", [FORGETTING], indirect=True)
def test_the_cache_in_bf16_changes_little(exported, ask):
    _, folder, _ = exported
    tokens = list(TEXT.encode()[:70])
    whole = np.array(ask("chunked", folder=folder, tokens=tokens, cuts=[], dtype="bfloat16"))
    pieces = np.array(ask("chunked", folder=folder, tokens=tokens, cuts=[1, 31], dtype="bfloat16"))
    assert np.max(np.abs(pieces - whole)) < 0.2


@pytest.mark.parametrize("exported", ["llama, learned"], indirect=True)
def test_learned_positions_end(exported, ask):
    _, folder, _ = exported
    assert ask("refusal", folder=folder, tokens=[1] * 256) == ""
    assert "256 positions" in ask("refusal", folder=folder, tokens=[1] * 257)


@pytest.mark.parametrize("exported", ["rope, interpolated, BOS"], indirect=True)
def test_interpolated_rope_knows_how_long_a_text_gets(exported, ask):
    """With the cache and without it, and told by max_new_tokens: one set of angles for the whole text."""
    _, folder, settings = exported
    tokens = list(TEXT.encode()[:70])
    whole = np.array(ask("chunked", folder=folder, tokens=tokens, cuts=[]))
    first = np.array(ask("chunked", folder=folder, tokens=tokens[:40], cuts=[]))
    assert np.max(np.abs(first - whole[:40])) > 100 * CLOSE
    prompt = prompt_of(settings)
    cached, plain = (
        ask("generate", folder=folder, prompts=[prompt], count=60, cache=cache)[0] for cache in (True, False)
    )
    check_greedy(ask, folder, prompt, cached, plain)


@pytest.mark.parametrize(
    "exported",
    ["goat, free slope", "Llama", "GPT-2", "alibi", FORGETTING, "interpolated rope, norms, forget"],
    indirect=True,
)
def test_bf16_is_near(exported, ask, shard, tmp_path):
    run, folder, settings = exported
    assert export_hf.main([str(run), str(tmp_path / "bf16"), "--dtype", "bf16"]) == 0
    inputs, targets = blocks(TRAINED, 8, settings)
    exact, near = (
        np.array(ask("losses", folder=place, tokens=inputs, targets=targets, dtype=dtype))
        for place, dtype in ((folder, "float32"), (tmp_path / "bf16", "bfloat16"))
    )
    assert 0 < abs(near.mean() - exact.mean()) < 0.05
    described = ask("describe", folder=tmp_path / "bf16", dtype="bfloat16")
    ours = described["class"] == "GoatForCausalLM"
    for name, dtype in described["parameters"].items():
        in_fp32 = ours and any(part in name for part in ("norm", ".prior.", ".forget."))
        assert dtype == ("torch.float32" if in_fp32 else "torch.bfloat16"), name


# From there to here

LLAMA = {
    "vocab_size": 256, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 4, "rms_norm_eps": 1e-5, "max_position_embeddings": 64,
    "bos_token_id": None, "eos_token_id": None,
    "rope_parameters": {"rope_type": "default", "rope_theta": 700.0},
}  # fmt: skip


GPT2 = {"vocab_size": 256, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256}
GPT2 |= {"bos_token_id": None, "eos_token_id": None}
STORED = [
    ("float32", "5GB"),
    ("float16", "5GB"),
    ("bfloat16", "5GB"),
    ("float32", "20KB"),
    ("float16", "20KB"),
]
STORED += [("bfloat16", "20KB")]


def check_import(ask, run_binary, shard, tmp_path, there, lengths):
    """The folder becomes a run whose losses and greedy text are those of `transformers`."""
    run = tmp_path / "run"
    assert import_hf.main([str(there), str(run)]) == 0
    ours = our_losses(run_binary, run, shard, tmp_path, lengths, 4 * max(lengths))
    for length in lengths:
        inputs, targets = blocks(length, len(ours[length]), {})
        theirs = np.array(ask("losses", folder=there, tokens=inputs, targets=targets))
        check_losses(length, ours[length], theirs)
    prompt = list(b"12 goats")
    made = greedy(run_binary, run, tmp_path, prompt, 200)
    check_greedy(ask, there, prompt, made, *ask("generate", folder=there, prompts=[prompt], count=200))


@pytest.mark.parametrize(("dtype", "shard_size"), STORED)
@pytest.mark.parametrize(
    ("kind", "keys", "lengths"),
    [("Llama", LLAMA, (64, 128)), ("GPT2", GPT2, (64, 256))],
    ids=["Llama", "GPT-2"],
)
def test_their_models_are_the_same_here(
    ask, shard, run_binary, tmp_path, kind, keys, lengths, dtype, shard_size
):
    keys = keys | {"tie_word_embeddings": dtype != "bfloat16"}
    ask("make", folder=tmp_path / "there", kind=kind, keys=keys, seed=1, dtype=dtype, shard=shard_size)
    assert (tmp_path / "there" / "model.safetensors.index.json").exists() is (shard_size == "20KB")
    check_import(ask, run_binary, shard, tmp_path, tmp_path / "there", lengths)


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        ("Llama", LLAMA | {"num_key_value_heads": 2, "rms_norm_eps": 1e-3}),
        ("Llama", LLAMA | {"num_key_value_heads": 1, "attention_bias": True, "mlp_bias": True}),
        ("GPT2", GPT2 | {"layer_norm_epsilon": 1e-2}),
    ],
    ids=["Llama, grouped heads, eps", "Llama, biases, one head of keys", "GPT-2, eps"],
)
def test_their_other_kinds_of_models_are_the_same_here(ask, shard, run_binary, tmp_path, kind, keys):
    ask("make", folder=tmp_path / "there", kind=kind, keys=keys, seed=2)
    check_import(ask, run_binary, shard, tmp_path, tmp_path / "there", (64, 128))


OURS = [name for name in VARIANTS if class_of(name) == "GoatForCausalLM" and "BOS" not in name]


@pytest.mark.parametrize("name", OURS)
def test_our_models_with_random_weights_are_the_same_here(ask, shard, run_binary, tmp_path, name):
    """modeling_goat.py makes the model, and `transformers` stores it."""
    settings = SETTINGS | VARIANTS[name]
    spelled = {"true": True, "false": False}
    changes = {
        key: value if key == "model.bias" else spelled.get(value, value)
        for key, value in settings.items()
        if key.partition(".")[0] in ("model", "prior")
    }
    for key in ("prior.init", "prior.sink_init_scale"):
        del changes[key]
    length = settings["data.seq_len"]
    config = config_with({"model.vocab": 256, "data.seq_len": length} | changes)
    keys = hf_models.Goat.keys(config) | {"bos_token_id": None, "eos_token_id": None}
    ask("make_ours", folder=tmp_path / "there", keys=keys, seed=len(name))
    check_import(ask, run_binary, shard, tmp_path, tmp_path / "there", (TRAINED, LONG))


@pytest.mark.parametrize(("dtype", "shard_size"), [("bfloat16", "20KB"), ("float16", "5GB")])
def test_our_models_in_fewer_bits_are_the_same_here(ask, shard, run_binary, tmp_path, dtype, shard_size):
    keys = hf_models.Goat.keys(config_with({"model.vocab": 256, "model.attention": "goat+rope_pi"}))
    keys |= {"bos_token_id": None, "eos_token_id": None}
    ask("make_ours", folder=tmp_path / "there", keys=keys, seed=5, dtype=dtype, shard=shard_size)
    check_import(ask, run_binary, shard, tmp_path, tmp_path / "there", (16, 64))


# Tokenizers and lm_eval


def test_the_tokenizer_of_a_folder_is_that_of_sample(ask, binary, shard, tmp_path):
    settings = SETTINGS | {"data.train": shard, "train.steps": 1, "train.warmup": 0}
    words = [
        binary,
        "--config",
        "shakespeare",
        "--device",
        "cpu",
        "--out",
        tmp_path / "run",
        *flags(settings),
    ]
    subprocess.run([str(word) for word in words], check=True, capture_output=True, timeout=300)
    assert export_hf.main([str(tmp_path / "run"), str(tmp_path / "out")]) == 0
    text = "Bär 熊, don't  stop \n.\n"
    found = ask("tokens_of", folder=tmp_path / "out", text=text)
    assert found == {"ids": list(text.encode()), "text": text}


def test_gpt2_s_tokens_are_tiktoken_s_and_begin_with_bos(ask, tiny, shard, binary, tmp_path):
    from prepare_tokenizers import load_folder

    encoding, files = load_folder(tiny)
    settings = SETTINGS | {
        "data.train": shard, "train.steps": 1, "train.warmup": 0, "model.vocab": 263, "data.block": "bos",
        "data.bos": 262,
    }  # fmt: skip
    words = [
        binary,
        "--config",
        "shakespeare",
        "--device",
        "cpu",
        "--out",
        tmp_path / "run",
        *flags(settings),
    ]
    subprocess.run([str(word) for word in words], check=True, capture_output=True, timeout=300)
    text = "the other theatre,  bathes\n\n in the  heath: aaaa's"
    for folder in (tiny, tmp_path / "json"):
        out = tmp_path / f"out of {folder.name}"
        words = [tmp_path / "run", out, "--tokenizer-dir", folder]
        set_tokenizer(tmp_path / "run", "gpt2" if folder == tiny else "tokenizer.json")
        assert export_hf.main([str(word) for word in words]) == 0
        found = ask("tokens_of", folder=out, text=text)
        assert found == {"ids": [262, *encoding.encode(text)], "text": text}
        if folder == tiny:
            (tmp_path / "json").mkdir()
            (tmp_path / "json" / "tokenizer.json").write_bytes((out / "tokenizer.json").read_bytes())


def set_tokenizer(run, name):
    """Writes into the run's checkpoint which tokenizer made its data."""
    from test_run_reader import checkpoint, seal

    seal(checkpoint(run, 1) / "state.json", lambda manifest: manifest["data"].update(tokenizer=name))


TASK = """task: goats
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: ["hats", "coats"]
doc_to_target: answer
metric_list: [{{metric: acc}}]
"""


@pytest.mark.parametrize("exported", ["goat, free slope", "Llama", "GPT-2", "alibi"], indirect=True)
def test_lm_eval_takes_a_folder(exported, ask, tmp_path):
    _, folder, _ = exported
    questions = [{"question": f"{n} goats ate {n * n}", "answer": 0} for n in range(12, 18)]
    (tmp_path / "goats.jsonl").write_text("".join(json.dumps(question) + "\n" for question in questions))
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "goats.yaml").write_text(TASK.format(data=tmp_path / "goats.jsonl"))
    arguments = f"pretrained={folder},trust_remote_code=True,dtype=float32,prefix_token_id=10"
    words = [PEER, "-m", "lm_eval", "--model", "hf", "--model_args", arguments, "--tasks", "goats",
             "--device", "cpu", "--batch_size", "1", "--include_path", tmp_path / "tasks",
             "--output_path", tmp_path / "results",
        "--log_samples"]  # fmt: skip
    offline = {"HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, env=os.environ | offline)
    assert done.returncode == 0, done.stderr[-4000:]
    (log,) = (tmp_path / "results").rglob("samples_goats_*.jsonl")
    samples = [json.loads(line) for line in log.read_text().splitlines()]
    assert len(samples) == len(questions)
    for sample in samples:
        for choice, answer in zip(("hats", "coats"), sample["filtered_resps"], strict=True):
            text, end = list(f"{sample['doc']['question']} {choice}".encode()), len(choice) + 1
            (losses,) = ask("losses", folder=folder, tokens=[text[:-1]], targets=[text[1:]])
            assert float(answer[0]) == pytest.approx(-sum(losses[-end:]), abs=1e-3)
