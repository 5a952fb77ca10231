"""import_hf.py without torch: layouts, dtypes and shards of Llama and GPT-2 folders, what the program makes
of the run, and what is refused."""

import json
import shutil
import subprocess

import numpy as np
import pytest
from safetensors.numpy import load_file

import export_hf
import hf_models
import hf_tokenizers
import import_hf
from fabricated_hf import GPT2, LLAMA, config_with, random_weights, theirs, write_hf_folder, write_model_run
from prepared import write_shard
from run_reader import read_checkpoint
from test_hf_export import VARIANTS

TEXT = "The goat eats the hat, the coat and the goat's own tail. " * 40
HEADS = {"model.vocab": 256, "model.rope_base": 300.0}


@pytest.fixture
def llama(tmp_path, rng):
    """llama(changes, dtype=, shards=, **keys): a Llama folder; (folder, config, tensors)."""

    def make(changes=(), **options):
        config = config_with(LLAMA | HEADS | dict(changes))
        tensors = theirs(rng, hf_models.Llama, config)
        folder = write_hf_folder(
            tmp_path / f"llama{len(list(tmp_path.iterdir()))}", hf_models.Llama, config, tensors, **options
        )
        return folder, config, tensors

    return make


@pytest.fixture
def refused(tmp_path, capsys):
    """refused(code, words...): the one line on stderr, after which nothing new is there."""

    def check(code, *words):
        before = sorted(tmp_path.rglob("*"))
        capsys.readouterr()
        assert import_hf.main([str(word) for word in words]) == code
        captured = capsys.readouterr()
        assert captured.out == "" and len(captured.err.splitlines()) == 1, captured
        assert sorted(tmp_path.rglob("*")) == before
        return captured.err

    return check


def weights_of(run):
    return load_file(run / "checkpoints" / "step_00000000" / "model.safetensors")


def import_it(*words):
    assert import_hf.main([str(word) for word in words]) == 0


# What arrives


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_every_dtype_in_one_file_or_in_shards(llama, tmp_path, dtype, shards):
    folder, config, tensors = llama(dtype="F32" if dtype == "F16" else dtype, shards=shards)
    if dtype == "F16":
        from safetensors.numpy import save_file

        tensors = {name: value.astype(np.float16) for name, value in tensors.items()}
        for path in folder.glob("*.safetensors"):
            save_file({name: tensors[name] for name in load_file(path)}, path)
    import_it(folder, tmp_path / "run")
    found = weights_of(tmp_path / "run")
    assert found.keys() == hf_models.tensor_shapes(config).keys()
    for mapped in hf_models.Llama.mapped(config):
        np.testing.assert_array_equal(found[mapped.ours[0]], tensors[mapped.theirs].astype(np.float32))


@pytest.mark.parametrize("changes", [{}, {"model.tied": False}])
def test_the_run_stands_before_its_first_step(llama, tmp_path, changes):
    folder, *_ = llama(changes)
    import_it(folder, tmp_path / "run")
    assert read_checkpoint(tmp_path / "run" / "checkpoints" / "step_00000000").step == 0
    moments = load_file(tmp_path / "run" / "checkpoints" / "step_00000000" / "optimizer.safetensors")
    assert len(moments) == 2 * len(weights_of(tmp_path / "run"))
    assert not any(value.any() for value in moments.values())


@pytest.mark.parametrize("older", [False, True])
def test_a_gpt2_arrives_from_newer_and_older_files(tmp_path, rng, older):
    config = config_with(GPT2 | {"model.vocab": 256})
    tensors = stored = theirs(rng, hf_models.Gpt2, config)
    if older:
        stored = {name.removeprefix("transformer."): value for name, value in tensors.items()}
        stored |= {
            "h.0.attn.bias": np.ones((1, 1, 16, 16), np.float32), "lm_head.weight": stored["wte.weight"]
        }  # fmt: skip
    folder = write_hf_folder(tmp_path / "gpt2", hf_models.Gpt2, config, stored)
    import_it(folder, tmp_path / "run")
    found = weights_of(tmp_path / "run")
    assert {name: value.shape for name, value in found.items()} == hf_models.tensor_shapes(config)
    block = tensors["transformer.h.1.attn.c_attn.weight"]
    np.testing.assert_array_equal(found["blocks.1.attn.k.weight"], block[:, 24:48].T)
    np.testing.assert_array_equal(
        found["blocks.1.mlp.up.weight"], tensors["transformer.h.1.mlp.c_fc.weight"].T
    )
    np.testing.assert_array_equal(found[hf_models.POSITION_TABLE], tensors["transformer.wpe.weight"])
    assert (
        read_checkpoint(tmp_path / "run" / "checkpoints" / "step_00000000").value("data.seq_len", int) == 16
    )


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_what_was_exported_comes_back(tmp_path, rng, changes):
    config = config_with(changes)
    weights = random_weights(rng, config)
    write_model_run(tmp_path / "run", weights, config)
    assert export_hf.main([str(tmp_path / "run"), str(tmp_path / "out")]) == 0
    import_it(tmp_path / "out", tmp_path / "back")
    found = weights_of(tmp_path / "back")
    assert found.keys() == weights.keys()
    assert all(np.array_equal(found[name], value) for name, value in weights.items())
    checkpoint = read_checkpoint(tmp_path / "back" / "checkpoints" / "step_00000000")
    back = export_hf.config_of(checkpoint)
    assert hf_models.Goat.keys(back) == hf_models.Goat.keys(config)


def test_a_tied_head_that_is_stored_again_must_be_the_embedding(llama, tmp_path, rng, refused):
    _, config, tensors = llama()
    again = tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"]}
    import_it(write_hf_folder(tmp_path / "again", hf_models.Llama, config, again), tmp_path / "run")
    other = tensors | {"lm_head.weight": 2 * tensors["model.embed_tokens.weight"]}
    folder = write_hf_folder(tmp_path / "other", hf_models.Llama, config, other)
    assert "lm_head.weight is not the embedding" in refused(3, folder, tmp_path / "new")


def test_rope_theta_is_found_in_both_places(llama, tmp_path):
    folder, *_ = llama(rope_theta=None, rope_parameters={"rope_type": "default", "rope_theta": 777.0})
    keys = json.loads((folder / "config.json").read_text())
    del keys["rope_theta"]
    (folder / "config.json").write_text(json.dumps(keys))
    import_it(folder, tmp_path / "run")
    assert "rope_base = 777.0" in (tmp_path / "run" / "config.toml").read_text()


def test_a_llama_s_grouped_heads_biases_and_eps_arrive(llama, tmp_path):
    changes = {"model.kv_heads": 1, "model.bias": "true", "model.norm_eps": 1e-6}
    folder, config, tensors = llama(changes)
    import_it(folder, tmp_path / "run")
    found = weights_of(tmp_path / "run")
    assert {name: value.shape for name, value in found.items()} == hf_models.tensor_shapes(config)
    bias = tensors["model.layers.1.self_attn.k_proj.bias"]
    np.testing.assert_array_equal(found["blocks.1.attn.k.bias"], bias)
    checkpoint = read_checkpoint(tmp_path / "run" / "checkpoints" / "step_00000000")
    model = export_hf.config_of(checkpoint)["model"]
    assert {f"model.{key}": model[key] for key in ("kv_heads", "bias", "norm_eps")} == changes


# What the program makes of it


def test_the_program_evaluates_samples_and_trains_on(llama, tmp_path, binary, run_binary):
    folder, *_ = llama()
    tokenizer, _ = hf_tokenizers.byte_level()
    (folder / "tokenizer.json").write_text(tokenizer.to_str())
    write_shard(tmp_path / "train_000000.bin", list(TEXT.encode()))
    run, shards = tmp_path / "run", tmp_path / "train_*.bin"
    import_it(folder, run, "--train", shards, "--val", shards, "--seq-len", 32)

    evaluated = run_binary("eval", "--checkpoint", run, "--device", "cpu", "--tokens", 512)
    assert "trained at length 32" in evaluated.stdout
    words = ["sample", "--checkpoint", run, "--device", "cpu", "--prompt", "The", "--tokens", "5"]
    sampled = subprocess.run([binary, *words], check=True, capture_output=True)
    assert sampled.stdout.startswith(b"The") and b"tokenizer tokenizer.json" in sampled.stderr
    settings = {"train.steps": 30, "train.batch": 4, "train.warmup": 2, "train.lr": 1e-2, "eval.tokens": 0}
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    run_binary("--resume", "--out", run, "--device", "cpu", *words)
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    losses = [entry["loss"] for entry in metrics if "loss" in entry]
    assert len(losses) == 30 and losses[-1] < 0.8 * losses[0]


def test_a_gpt2_samples_text_by_its_own_tokenizer(tmp_path, rng, tiny, byte_ids, binary):
    config = config_with(GPT2 | {"model.vocab": 263})
    tensors = theirs(rng, hf_models.Gpt2, config)
    folder = write_hf_folder(
        tmp_path / "gpt2", hf_models.Gpt2, config, tensors, dtype="BF16", shards=3, bos_token_id=262
    )
    for theirs_name, ours in (("merges.txt", "vocab.bpe"), ("vocab.json", "encoder.json")):
        shutil.copy(tiny / ours, folder / theirs_name)
    import_it(folder, tmp_path / "run")
    words = [
        "sample",
        "--checkpoint",
        tmp_path / "run",
        "--device",
        "cpu",
        "--prompt",
        "the",
        "--tokens",
        "12",
    ]
    done = subprocess.run([binary, *words, "--json", tmp_path / "text.json"], capture_output=True)
    assert done.returncode == 0, done.stderr
    assert b"tokenizer gpt2" in done.stderr and done.stdout.startswith(b"the")
    tokens = json.loads((tmp_path / "text.json").read_text())[0]["tokens"]
    assert len(tokens) == (tokens.index(262) + 1 if 262 in tokens else 12)  # 262 ends a text
    # BOS, "the" and 14 more fill the 16 positions that the model has learned.
    longer = subprocess.run([binary, *words[:-1], "15"], capture_output=True)
    assert longer.returncode == 2 and b"up to 16 tokens" in longer.stderr


def test_there_and_back_is_the_same_bytes(llama, tmp_path, run_binary):
    """The program writes the run again: its own checkpoint of the last step is exported and imported."""
    folder, *_ = llama({"model.tied": False})
    write_shard(tmp_path / "train_000000.bin", list(TEXT.encode()))
    import_it(folder, tmp_path / "run", "--train", tmp_path / "train_*.bin")
    settings = {"train.steps": 2, "train.batch": 2, "train.warmup": 1, "eval.tokens": 0}
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    run_binary("--resume", "--out", tmp_path / "run", "--device", "cpu", *words)
    assert export_hf.main([str(tmp_path / "run"), str(tmp_path / "out")]) == 0
    import_it(tmp_path / "out", tmp_path / "back")
    trained = load_file(tmp_path / "run" / "checkpoints" / "step_00000002" / "model.safetensors")
    back = weights_of(tmp_path / "back")
    assert back.keys() == trained.keys()
    assert all(np.array_equal(back[name], value) for name, value in trained.items())


# What is refused


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"num_key_value_heads": 1}, "k_proj.weight' has shape [24, 24], expected [12, 24]"),
        ({"num_key_value_heads": 3}, "num_key_value_heads is 3, which does not divide"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "scales rope ('llama3')"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "scales rope ('linear')"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "scales rope ('yarn')"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor is 0.5"),
        ({"rope_theta": 0.5}, "rope_theta is 0.5"),
        ({"rms_norm_eps": 0}, "rms_norm_eps is 0, expected a number from 1e-30 to 1"),
        ({"head_dim": 8}, "head_dim is 8"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        (
            {"attention_bias": True},
            "attention_bias is True, mlp_bias is False; the program has biases in all",
        ),
        ({"mlp_bias": True}, "attention_bias is False, mlp_bias is True; the program has biases in all"),
        ({"mlp_bias": "no"}, "mlp_bias is 'no'"),
        ({"attention_bias": True, "mlp_bias": True}, "'model.layers.0.self_attn.q_proj.bias' is missing"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantized"),
        ({"hidden_size": "24"}, "hidden_size is '24'"),
        ({"num_attention_heads": 5, "num_key_value_heads": 5, "head_dim": None}, "not divisible by 5 heads"),
        ({"model_type": "mistral"}, "model_type is 'mistral'"),
        ({"num_hidden_layers": 1}, "no place for"),
        ({"num_hidden_layers": 3}, "'model.layers.2.input_layernorm.weight' is missing"),
        ({"intermediate_size": 44}, "has shape [40, 24], expected [44, 24]"),
    ],
)
def test_models_that_the_program_does_not_have(llama, tmp_path, refused, keys, words):
    folder, *_ = llama(**keys)
    assert words in refused(3, folder, tmp_path / "run")


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"activation_function": "relu"}, "activation_function is 'relu'; the program has 'gelu_new' or"),
        ({"layer_norm_epsilon": 2}, "layer_norm_epsilon is 2"),
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx is True"),
        ({"scale_attn_weights": False}, "scale_attn_weights is False"),
        ({"add_cross_attention": True}, "add_cross_attention is True"),
        ({"n_inner": -1}, "n_inner is -1"),
        ({"n_positions": 15}, "'transformer.wpe.weight' has shape [16, 24], expected [15, 24]"),
    ],
)
def test_gpt2s_that_the_program_does_not_have(tmp_path, rng, refused, keys, words):
    config = config_with(GPT2)
    folder = write_hf_folder(
        tmp_path / "gpt2", hf_models.Gpt2, config, theirs(rng, hf_models.Gpt2, config), **keys
    )
    assert words in refused(3, folder, tmp_path / "run")


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"block": "bert"}, "block is 'bert'"),
        ({"attention": "goat+xpos"}, "attention is 'goat+xpos'"),
        ({"attention": 5}, "attention is 5"),
        ({"attention_scale": 0.3}, "attention_scale is 0.3"),
        ({"prior": None}, "prior is None"),
        ({"content_dim": 0}, "content_dim is 0"),
        ({"norm_eps": -1e-6}, "norm_eps is -1e-06"),
        ({"bias": "auto"}, "bias is 'auto'"),
        ({"bias": False}, "has no place for"),
        ({"qk_norm": True}, "'blocks.0.attn.q_norm.weight' is missing"),
        ({"num_key_value_heads": 3}, "num_key_value_heads is 3, which does not divide"),
    ],
)
def test_damaged_folders_of_our_own(tmp_path, rng, refused, keys, words):
    config = config_with({})
    folder = write_hf_folder(
        tmp_path / "goat", hf_models.Goat, config, theirs(rng, hf_models.Goat, config), **keys
    )
    assert words in refused(3, folder, tmp_path / "run")


def test_a_length_that_is_a_part_of_the_model_stays(tmp_path, rng, refused):
    for n, (family, changes) in enumerate(((hf_models.Gpt2, GPT2), (hf_models.Goat, {}))):
        config = config_with(changes)
        folder = write_hf_folder(tmp_path / str(n), family, config, theirs(rng, family, config))
        assert "a part of this model, 16" in refused(2, folder, tmp_path / "run", "--seq-len", 8)


def test_damaged_folders(llama, tmp_path, refused):
    folder, *_ = llama(shards=2)
    run = tmp_path / "run"

    def damaged(name, change):
        copy = shutil.copytree(folder, tmp_path / name)
        change(copy)
        return refused(3, copy, run)

    first = "model-00001-of-00002.safetensors"
    index = "model.safetensors.index.json"
    assert "listed in" in damaged("gone", lambda copy: (copy / first).unlink())
    contents = (folder / first).read_bytes()
    assert "cut short: the file has" in damaged("cut", lambda copy: (copy / first).write_bytes(contents[:-4]))
    assert "cut short, damaged" in damaged("short", lambda copy: (copy / first).write_bytes(contents[:50]))
    assert "not JSON" in damaged("index", lambda copy: (copy / index).write_text("{"))
    outside = json.dumps({"weight_map": {"a": "../a.safetensors"}})
    assert "not a plain file name" in damaged("outside", lambda copy: (copy / index).write_text(outside))
    absent = json.dumps({"weight_map": {"a": first}})
    assert "lists tensors that its files lack: a" in damaged(
        "absent", lambda copy: (copy / index).write_text(absent)
    )
    assert "have to be saved as safetensors" in damaged("none", lambda copy: (copy / index).unlink())


def test_a_run_that_is_there_stays(llama, tmp_path, refused):
    folder, *_ = llama()
    import_it(folder, tmp_path / "run")
    assert "is there and is not empty" in refused(2, folder, tmp_path / "run")
    assert "no such folder" in refused(2, tmp_path / "nowhere", tmp_path / "new")
    assert "has no config.json" in refused(2, tmp_path / "run", tmp_path / "new")
    assert "--seq-len 0" in refused(2, folder, tmp_path / "new", "--seq-len", 0)
