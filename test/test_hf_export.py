"""export_hf.py without torch: names, shapes and layouts of tensors, config.json, tokenizers, and what it
refuses."""

import json
import os
import signal

import numpy as np
import pytest
from safetensors.numpy import load_file
from tokenizers import Tokenizer

import export_hf
import hf_files
import hf_models
import hf_tokenizers
from fabricated_hf import GPT2, LLAMA, config_with, random_weights, write_model_run
from reference.needle_numpy import ALPHABET

VARIANTS = {
    "goat": {},
    "goat, untied": {"model.tied": False},
    "goat, softplus": {"prior.recency": "softplus", "prior.lane_dim": 8},
    "goat, no slope, learned frequencies": {"prior.recency": "off", "prior.learned_frequencies": True},
    "goat, unscaled": {"model.attn_scale": "none", "prior.sink_hidden": 5},
    "rope": {"model.attention": "rope"},
    "none": {"model.attention": "none"},
    "alibi": {"model.attention": "alibi"},
    "alibi, learned": {"model.attention": "alibi_learned"},
    "rope in part": {"model.attention": "rope", "model.rope_fraction": 0.5},
    "rope, interpolated": {"model.attention": "rope_pi"},
    "sinusoidal": {"model.attention": "sinusoidal"},
    "goat and rope in part": {"model.attention": "goat+rope", "model.rope_fraction": 0.45},
    "goat with ALiBi's slopes": {"model.attention": "alibi_learned+goat", "prior.recency": "off"},
    "rope and both absolute": {"model.attention": "rope+sinusoidal+learned"},
    "llama, goat": {"model.block": "llama"},
    "llama, learned": GPT2 | {"model.block": "llama"},
    "llama, rope in part": LLAMA | {"model.rope_fraction": 0.75},
    "llama, other eps": {"model.block": "llama", "model.norm_eps": 1e-6},
    "llama, biases": {"model.block": "llama", "model.bias": "true"},
    "llama, rope, norms of q and k": LLAMA | {"model.qk_norm": True},
    "gpt without biases": GPT2 | {"model.bias": "false"},
    "gpt with one head of keys": GPT2 | {"model.kv_heads": 1},
    "goat, one head of keys": {"model.kv_heads": 1, "model.bias": "true", "model.qk_norm": True},
    "forget": {"model.attention": "forget"},
    "goat and forget": {"model.attention": "goat+forget", "model.kv_heads": 1, "model.bias": "false"},
    "llama, rope, unscaled": LLAMA | {"model.attn_scale": "none"},
}


@pytest.fixture
def export(tmp_path, rng):
    """export(changes, *options, code=0): a run with these keys, exported; (folder, config, weights)."""
    made = []

    def run_export(changes, *options, code=0):
        config = config_with(changes)
        weights = random_weights(rng, config)
        run = write_model_run(tmp_path / f"run{len(made)}", weights, config)
        made.append(run)
        out = tmp_path / f"out{len(made)}"
        assert export_hf.main([str(word) for word in (run, out, *options)]) == code
        return out, config, weights

    return run_export


@pytest.fixture
def refused(tmp_path, capsys):
    """refused(code, words...): the one line on stderr, after which nothing new is there."""

    def check(code, *words):
        before = sorted(tmp_path.rglob("*"))
        capsys.readouterr()
        assert export_hf.main([str(word) for word in words]) == code
        captured = capsys.readouterr()
        assert captured.out == "" and len(captured.err.splitlines()) == 1, captured
        assert sorted(tmp_path.rglob("*")) == before
        return captured.err

    return check


def read_config(folder):
    return json.loads((folder / "config.json").read_text())


# Tensors and config.json


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_models_of_our_own_keep_names_and_values(export, changes):
    out, config, weights = export(changes)
    stored = load_file(out / "model.safetensors")
    assert stored.keys() == weights.keys()
    for name, value in weights.items():
        np.testing.assert_array_equal(stored[name], value)
    keys = read_config(out)
    assert keys["architectures"] == ["GoatForCausalLM"]
    assert keys["auto_map"]["AutoModelForCausalLM"] == "modeling_goat.GoatForCausalLM"
    source = export_hf.HERE / "modeling_goat.py"
    assert (out / "modeling_goat.py").read_bytes() == source.read_bytes()
    content = weights["blocks.0.attn.q.weight"].shape[0] // 2
    scale = 1.0 if config["model"]["attn_scale"] == "none" else content**-0.5
    assert (keys["content_dim"], keys["attention_scale"]) == (content, scale)
    assert keys["norm_eps"] == config["model"].get("norm_eps", 1e-5)
    assert keys["num_key_value_heads"] == weights["blocks.0.attn.v.weight"].shape[0] // 12
    assert keys["bias"] is ("blocks.0.attn.q.bias" in weights)
    assert keys["qk_norm"] is ("blocks.0.attn.q_norm.weight" in weights)


@pytest.mark.parametrize(
    ("changes", "dims"),
    [
        (LLAMA, 12),
        ({"model.attention": "rope_pi", "model.rope_fraction": 0.5}, 6),
        ({"model.attention": "rope", "model.rope_fraction": 0.375}, 4),  # 2.25 pairs
        ({"model.attention": "goat+rope", "model.rope_fraction": 0.5}, 4),  # 1.5 pairs of 6 dimensions
        ({"model.attention": "goat+rope", "prior.lane_dim": 7, "model.rope_fraction": 0.99}, 4),  # of 5
    ],
)
def test_rope_turns_whole_pairs(changes, dims):
    assert hf_models.rope_dim(config_with(changes)) == dims


def test_the_prior_s_defaults_are_spelled_out(export):
    out, _, weights = export({})
    prior = read_config(out)["prior"]
    assert prior["sink_hidden"] == weights["blocks.0.attn.prior.sink.b1"].shape[0] == 4


@pytest.mark.parametrize("tied", [True, False])
def test_a_llama_block_with_rope_is_a_llama(export, tied):
    out, _, weights = export(LLAMA | {"model.tied": tied, "model.rope_base": 500.0})
    stored = load_file(out / "model.safetensors")
    assert len(stored) == len(weights)
    layer = "model.layers.1."
    pairs = {
        "model.embed_tokens.weight": "embedding.weight",
        f"{layer}input_layernorm.weight": "blocks.1.norm1.weight",
        f"{layer}post_attention_layernorm.weight": "blocks.1.norm2.weight",
        f"{layer}self_attn.q_proj.weight": "blocks.1.attn.q.weight",
        f"{layer}self_attn.k_proj.weight": "blocks.1.attn.k.weight",
        f"{layer}self_attn.v_proj.weight": "blocks.1.attn.v.weight",
        f"{layer}self_attn.o_proj.weight": "blocks.1.attn.o.weight",
        f"{layer}mlp.gate_proj.weight": "blocks.1.mlp.gate.weight",
        f"{layer}mlp.up_proj.weight": "blocks.1.mlp.up.weight",
        f"{layer}mlp.down_proj.weight": "blocks.1.mlp.down.weight",
        "model.norm.weight": "final_norm.weight",
    } | ({} if tied else {"lm_head.weight": "head.weight"})
    for theirs, ours in pairs.items():
        np.testing.assert_array_equal(stored[theirs], weights[ours])
    keys = read_config(out)
    assert keys["architectures"] == ["LlamaForCausalLM"] and "auto_map" not in keys
    assert keys["tie_word_embeddings"] is tied and keys["rope_theta"] == 500.0
    assert (keys["rms_norm_eps"], keys["head_dim"], keys["num_key_value_heads"]) == (1e-5, 12, 2)
    assert not (out / "modeling_goat.py").exists()


def test_a_llama_s_grouped_heads_biases_and_eps(export):
    out, _, weights = export(LLAMA | {"model.kv_heads": 1, "model.bias": "true", "model.norm_eps": 1e-6})
    stored = load_file(out / "model.safetensors")
    assert len(stored) == len(weights)
    pairs = {"self_attn.k_proj": "attn.k", "self_attn.o_proj": "attn.o", "mlp.up_proj": "mlp.up"}
    for theirs, ours in pairs.items():
        for kind in ("weight", "bias"):
            found = stored[f"model.layers.1.{theirs}.{kind}"]
            np.testing.assert_array_equal(found, weights[f"blocks.1.{ours}.{kind}"])
    assert stored["model.layers.0.self_attn.v_proj.weight"].shape == (12, 24)
    keys = read_config(out)
    assert keys["architectures"] == ["LlamaForCausalLM"]
    assert (keys["rms_norm_eps"], keys["num_key_value_heads"]) == (1e-6, 1)
    assert keys["attention_bias"] is keys["mlp_bias"] is True


def test_a_gpt_block_with_learned_positions_is_a_gpt2(export):
    out, _, weights = export(GPT2)
    stored = load_file(out / "model.safetensors")
    layer, block = "transformer.h.1.", "blocks.1."
    np.testing.assert_array_equal(stored["transformer.wpe.weight"], weights[hf_models.POSITION_TABLE])
    for part, name in enumerate("qkv"):
        columns = slice(24 * part, 24 * (part + 1))
        found = stored[f"{layer}attn.c_attn.weight"][:, columns]
        np.testing.assert_array_equal(found, weights[f"{block}attn.{name}.weight"].T)
        bias = stored[f"{layer}attn.c_attn.bias"][columns]
        np.testing.assert_array_equal(bias, weights[f"{block}attn.{name}.bias"])
    for theirs, ours in {"attn.c_proj": "attn.o", "mlp.c_fc": "mlp.up", "mlp.c_proj": "mlp.down"}.items():
        np.testing.assert_array_equal(stored[f"{layer}{theirs}.weight"], weights[f"{block}{ours}.weight"].T)
        np.testing.assert_array_equal(stored[f"{layer}{theirs}.bias"], weights[f"{block}{ours}.bias"])
    np.testing.assert_array_equal(stored[f"{layer}ln_2.bias"], weights[f"{block}norm2.bias"])
    keys = read_config(out)
    assert keys["architectures"] == ["GPT2LMHeadModel"]
    assert (keys["n_positions"], keys["n_inner"], keys["activation_function"]) == (16, 40, "gelu_new")


def test_bf16_rounds_to_nearest_even_and_keeps_what_is_computed_in_fp32(export):
    changes = {"model.attention": "goat+forget", "model.qk_norm": True}
    out, _, weights = export(changes, "--dtype", "bf16")
    stored = hf_files.read_header(out / "model.safetensors")
    kept = {name for name, tensor in stored.items() if tensor.dtype == "F32"}
    assert kept == {name for name in weights if any(part in name for part in ("norm", ".prior.", ".forget."))}
    assert read_config(out)["torch_dtype"] == "bfloat16"
    name = "blocks.0.attn.v.weight"
    rounded = stored[name].read(name)
    assert 0 < np.max(np.abs(rounded / weights[name] - 1)) <= 2**-8
    exact = np.array([1.0, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, -1 - 2**-8], np.float32)
    nearest = [1.0, 1.0, 1 + 2**-6, 1 + 2**-7, -1.0]
    assert hf_files.from_bf16(hf_files.to_bf16(exact)).tolist() == nearest


# Tokenizers


def encode(out, text):
    return Tokenizer.from_file(str(out / "tokenizer.json")).encode(text).ids


def test_bytes_are_ids(export):
    out, *_ = export({"model.vocab": 256})
    text = "Bär 熊\n\0 Ā  '’s <|endoftext|>"
    assert encode(out, text) == list(text.encode())
    assert Tokenizer.from_file(str(out / "tokenizer.json")).decode(list(text.encode())) == text


def test_bases_are_read_as_the_program_reads_them(export):
    out, *_ = export({"model.vocab": 5})
    assert encode(out, "acGt\r\n N\tA") == [0, 1, 2, 4, 3, 0]
    with pytest.raises(Exception, match="WordLevel"):
        encode(out, "ACX")
    assert Tokenizer.from_file(str(out / "tokenizer.json")).decode([0, 4, 4]) == "ATT"


def test_the_characters_of_the_built_in_tasks(export):
    out, *_ = export({"model.vocab": 70, "data.source": "passkey"})
    assert hf_tokenizers.TASK_CHARACTERS == ALPHABET
    assert encode(out, "a \\") == [3, 39, 69]
    assert Tokenizer.from_file(str(out / "tokenizer.json")).decode([10, 39, 69]) == "h \\"


def test_gpt2_s_files_and_the_bos_token(export, tiny, byte_ids):
    changes = {"model.vocab": 263, "data.block": "bos", "data.bos": 262}
    config = config_with(changes)
    loaded = hf_tokenizers.export_tokenizer(config, "gpt2", [tiny])
    assert (loaded.bos, loaded.eos) == (262, 262)
    tokenizer = Tokenizer.from_str(loaded.files["tokenizer.json"].decode())
    space, b, x = byte_ids[ord(" ")], byte_ids[ord("b")], byte_ids[ord("x")]
    assert tokenizer.encode("the the").ids == [262, 257, 258]
    assert tokenizer.encode("b x", add_special_tokens=False).ids == [b, space, x]
    assert tokenizer.decode([257, 258], skip_special_tokens=True) == "the the"
    settings = json.loads(loaded.files["tokenizer_config.json"])
    assert settings["bos_token"] == settings["eos_token"] == "<|endoftext|>"


def test_a_tokenizer_json_goes_along(tmp_path):
    config = config_with({"model.vocab": 300, "data.block": "bos", "data.bos": 256})
    loaded, _ = hf_tokenizers.byte_level()
    loaded.add_special_tokens(["<s>"])
    (tmp_path / "tokenizer.json").write_text(loaded.to_str())
    found = hf_tokenizers.export_tokenizer(config, "tokenizer.json", [tmp_path])
    tokenizer = Tokenizer.from_str(found.files["tokenizer.json"].decode())
    assert tokenizer.encode("a").ids == [256, ord("a")]
    assert found.eos == 256


def test_a_folder_without_a_tokenizer_says_so(export):
    out, *_ = export({"data.source": "copy_mixture"})
    assert not (out / "tokenizer.json").exists()
    assert "There is none: the model's tokens are ids" in (out / "README.md").read_text()
    out, *_ = export({"model.vocab": 50257})
    assert "has not kept the files of its tokenizer, gpt2" in (out / "README.md").read_text()


def test_ids_that_the_tokenizer_lacks_are_null(export):
    out, *_ = export(LLAMA)
    for file in ("config.json", "generation_config.json"):
        keys = json.loads((out / file).read_text())
        assert keys["bos_token_id"] is None and keys["eos_token_id"] is None


# What it refuses, and what is left behind


def test_a_folder_that_is_there_stays_without_overwrite(export, refused, tmp_path, rng):
    out, config, weights = export(LLAMA)
    run = write_model_run(tmp_path / "other", random_weights(rng, config), config)
    assert "--overwrite replaces it" in refused(2, run, out)
    np.testing.assert_array_equal(
        load_file(out / "model.safetensors")["model.norm.weight"], weights["final_norm.weight"]
    )
    assert export_hf.main([str(run), str(out), "--overwrite"]) == 0
    assert not np.array_equal(
        load_file(out / "model.safetensors")["model.norm.weight"], weights["final_norm.weight"]
    )
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_overwrite_spares_what_is_no_exported_folder(refused, export, tmp_path):
    _, config, weights = export({})
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter.txt").write_text("dear")
    assert "has no config.json" in refused(2, tmp_path / "run0", tmp_path / "home", "--overwrite")


def test_a_failure_leaves_nothing_and_keeps_what_was_there(export, tmp_path, monkeypatch, capsys):
    out, *_ = export({})
    before = {path: path.read_bytes() for path in out.iterdir()}

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("hf_card.model_card", full)
    assert export_hf.main([str(tmp_path / "run0"), str(out), "--overwrite"]) == 1
    assert "No space left" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in out.iterdir()} == before
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


@pytest.fixture
def interruptible():
    """SIGINT interrupts this process, even where the caller has it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interruption_between_the_renames_puts_the_old_folder_back(export, tmp_path, monkeypatch):
    out, *_ = export({})
    rename = os.rename

    def interrupted(source, target):
        rename(source, target)
        if str(target).endswith(".old"):
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(os, "rename", interrupted)
    assert export_hf.main([str(tmp_path / "run0"), str(out), "--overwrite"]) == 1
    assert (out / "config.json").exists()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_what_does_not_fit_the_config_is_refused(tmp_path, refused, rng):
    config = config_with({})
    weights = random_weights(rng, config)

    def changed(name, **changes):
        return write_model_run(tmp_path / name, {**weights, **changes}, config)

    wrong = changed("wrong", **{"final_norm.bias": np.zeros(23, np.float32)})
    assert "'final_norm.bias' has shape [23], expected [24]" in refused(3, wrong, tmp_path / "out")
    extra = changed("extra", **{"rotor": np.zeros(2, np.float32)})
    assert "does not know: rotor" in refused(3, extra, tmp_path / "out")
    diverged = changed("diverged", **{"final_norm.bias": np.full(24, np.nan, np.float32)})
    assert "not finite" in refused(3, diverged, tmp_path / "out")
    lacking = write_model_run(
        tmp_path / "lacking", {k: v for k, v in weights.items() if k != "final_norm.bias"}, config
    )
    assert "'final_norm.bias' is missing" in refused(3, lacking, tmp_path / "out")


def test_a_model_that_nobody_has_is_refused(tmp_path, refused, rng):
    config = config_with({"model.attention": "rope"})
    weights = random_weights(rng, config)
    refusals = [
        {"model.attention": "xpos"},
        {"model.attention": "rope+xpos"},
        {"model.attention": "rope+rope"},
        {"model.attention": "goat+forget+swirl"},
    ]
    for n, changes in enumerate(refusals):
        run = write_model_run(tmp_path / str(n), weights, config_with(changes))
        assert "cannot be exported" in refused(3, run, tmp_path / "out")


def test_a_key_of_a_later_program_is_refused(tmp_path, refused, rng):
    config = config_with({"model.precision": "auto", "model.swirl": 0.0})
    run = write_model_run(tmp_path / "run", random_weights(rng, config), config)
    assert "model.swirl is not known to this export_hf.py" in refused(3, run, tmp_path / "out")


def test_the_card_tells_what_is_not_usual(export):
    rows = ("| heads of keys and values | 1 |", "| biases | none |", "| q and k | normed in each head |")
    out, *_ = export({"model.kv_heads": 1, "model.bias": "false", "model.qk_norm": True})
    card = (out / "README.md").read_text()
    assert all(row in card for row in rows)
    out, *_ = export({"model.kv_heads": 2, "model.bias": "true"})
    card = (out / "README.md").read_text()
    assert not any(row.rpartition(" |")[0] in card for row in rows)


def test_a_step_can_be_chosen(tmp_path, refused, rng):
    config = config_with({})
    run = write_model_run(tmp_path / "run", random_weights(rng, config), config, (10, 20))
    assert export_hf.main([str(run), str(tmp_path / "out"), "--checkpoint", "10"]) == 0
    assert "| steps | 10 |" in (tmp_path / "out" / "README.md").read_text()
    assert "there are: 10, 20" in refused(2, run, tmp_path / "new", "--checkpoint", 11)
