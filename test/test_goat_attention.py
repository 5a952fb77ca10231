"""import_goat_attention.py: the attention of the package goat-attention against ours on the same weights, as
NumPy and as the program computes it. Needs .venv-hf, which scripts/setup.sh hf makes; without it all of this
is skipped."""

import subprocess

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import import_goat_attention
import import_hf
from conftest import REPOSITORY
from goat_attention import layer_of
from hf_process import PEER, ask, needs_peer  # noqa: F401  a fixture
from prepared import write_shard
from reference.goat_numpy import Model, ModelConfig
from run_writer import write_run

pytestmark = needs_peer

CLOSE = 1e-5
TRAINED, LENGTH = 24, 64
OPTIONS = {"embed_dim": 64, "num_heads": 4, "pos_rank": 2, "abs_rank": 4, "training_seq_len": TRAINED}
LAYERS = {
    "R = 1": {"pos_rank": 1},
    "R = 2": {},
    "R = 4": {"pos_rank": 4},
    "R = 0, of for_gpt": {"pos_rank": 0, "abs_rank": 8, "fuse_qkv": True},
    "one projection": {"fuse_qkv": True},
    "grouped queries": {"kv_num_heads": 2},
    "grouped queries in one projection": {"kv_num_heads": 1, "fuse_qkv": True},
    "no key bias": {"enable_key_bias": False},
    "no biases, no absolute modes": {"bias": False, "abs_rank": 0},
    "other bases": {"pos_rank": 3, "pos_base": 500.0, "abs_base": 77.5},
    "three heads": {"embed_dim": 48, "num_heads": 3, "prior_init": "uniform"},
}


@pytest.fixture
def made(ask, tmp_path, rng):
    """made(options, prior_scale=1): a folder with a GoatAttention of random weights; skips without the
    package."""
    if not ask("has_package", name="goat"):
        pytest.skip(f"{PEER} has no package goat-attention: scripts/setup.sh hf installs it")

    def make(options=(), prior_scale=1.0, name="theirs"):
        seed = int(rng.integers(1 << 30))
        keys = OPTIONS | dict(options)
        version = ask(
            "make_attention", folder=tmp_path / name, options=keys, seed=seed, prior_scale=prior_scale
        )
        assert version.startswith("0.1.")
        return tmp_path / name, keys

    return make


def normed_embeddings(rng, width, used, tokens):
    """Random weights of norm1, whose output is 0 but in the first `used` channels; the embedded tokens, and
    their norms."""
    embedding = rng.normal(size=(tokens, width)).astype(np.float32)
    embedding[:, -2:] = 2, -2  # two channels that attention does not write: they tell the final norm's scale
    weight, bias = np.zeros((2, width), np.float32)
    weight[:used], bias[:used] = 1 + 0.3 * rng.normal(size=used), 0.3 * rng.normal(size=used)
    x = embedding.astype(np.float64)
    centred = x - x.mean(-1, keepdims=True)
    unit = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    return {"weight": weight, "bias": bias}, embedding, unit * weight + bias


def one_layer(layer, norm, embedding):
    """The tensors of a gpt model with this attention, an MLP of zeros, and a head that gives each coordinate
    of the final norm a logit of its own, and token 0 a logit of 0."""
    vocab, width = embedding.shape
    ones, zeros = np.ones(width, np.float32), np.zeros(width, np.float32)
    head = np.zeros((vocab, width), np.float32)
    head[1 : width + 1] = np.eye(width)
    block, rows = "blocks.0.", {part: len(layer.tensors[f"{part}.weight"]) for part in "qkvo"}
    tensors = {"embedding.weight": embedding, "head.weight": head}
    tensors |= {f"{block}norm1.{kind}": value for kind, value in norm.items()}
    tensors |= {f"{block}norm2.weight": ones, f"{block}norm2.bias": zeros}
    tensors |= {"final_norm.weight": ones, "final_norm.bias": zeros}
    tensors |= {f"{block}attn.{part}.bias": np.zeros(count, np.float32) for part, count in rows.items()}
    tensors |= {f"{block}attn.{name}": value for name, value in layer.tensors.items()}
    tensors |= {f"{block}mlp.up.weight": np.zeros((8, width), np.float32)}
    tensors |= {f"{block}mlp.up.bias": np.zeros(8, np.float32), f"{block}mlp.down.bias": zeros}
    return tensors | {f"{block}mlp.down.weight": np.zeros((width, 8), np.float32)}


def config_of(layer, vocab):
    model = {"block": "gpt", "layers": 1, "ff_width": 8, "vocab": vocab, "tied": False, "rope_base": 1e4}
    data = {"source": "shards", "train": "none_*.bin", "mixture": "", "val": "", "seq_len": TRAINED}
    data |= {"block": "bos", "bos": vocab - 1}
    return {
        "model": model | layer.model,
        "prior": import_hf.PRIOR | layer.prior,
        "data": data,
        "train": import_hf.TRAINING,
    }


def through_numpy(config, tensors, x):
    """What goat_numpy.py's attention gives for x [T, C], float64."""
    model = Model(ModelConfig.from_run(config), tensors)
    return model.attention("blocks.0.attn", x[None])[0][0]


def through_the_program(run_binary, folder, config, tensors, prefix, positions):
    """Attention's output [positions, C], found from the losses of eval: those of all targets at a position
    tell its logits, these the final norm's output, and the last two channels that norm's scale and mean."""
    write_run(folder / "run", config, [(k, v.shape, lambda v=v: v) for k, v in tensors.items()], "", {})
    width, length = config["model"]["width"], len(prefix)
    sequences = np.zeros((len(positions), width + 1, length), int)
    for n, position in enumerate(positions):
        sequences[n, :, :position] = prefix[1 : position + 1]  # the first input is BOS
        sequences[n, :, position] = np.arange(width + 1)
    shard = folder / "all_targets.bin"
    write_shard(shard, sequences.ravel())
    run_binary("eval", "--checkpoint", folder / "run", "--device", "cpu", "--data", shard,
               "--lengths", length, "--tokens", sequences.size,
               "--per-token", folder / "nll.npy")  # fmt: skip
    losses = np.load(folder / "nll.npy").astype(np.float64).reshape(sequences.shape)
    losses = np.stack([losses[n, :, position] for n, position in enumerate(positions)])
    unit = losses[:, :1] - losses[:, 1:]
    scale = 4 / (unit[:, -2:-1] - unit[:, -1:])
    stream = (unit - unit[:, -2:-1]) * scale + 2
    return stream - tensors["embedding.weight"][prefix[positions]]


@pytest.mark.parametrize("options", LAYERS.values(), ids=LAYERS)
def test_the_same_attention(ask, made, run_binary, rng, tmp_path, options):
    theirs, keys = made(options)
    state = load_file(theirs / "state.safetensors")
    heads, used = keys["num_heads"], keys["embed_dim"]
    layer = layer_of("layer", state, heads)
    width = layer.model["width"]
    vocab = width + 2
    norm, embedding, normed = normed_embeddings(rng, width, used, vocab)
    prefix = np.concatenate([[vocab - 1], rng.integers(vocab, size=LENGTH - 1)])
    tensors, config = one_layer(layer, norm, embedding), config_of(layer, vocab)

    expected = np.array(ask("attention_output", folder=theirs, x=normed[prefix, :used].tolist()))
    assert expected.std() > 0.1
    ours = through_numpy(config, tensors, normed[prefix])
    assert not ours[:, used:].any()
    of_numpy = np.max(np.abs(ours[:, :used] - expected))
    positions = np.sort(np.append(rng.choice(np.arange(1, LENGTH), 7, replace=False), 0))
    (tmp_path / "run of it").mkdir()
    found = through_the_program(run_binary, tmp_path / "run of it", config, tensors, prefix, positions)
    of_program = np.max(np.abs(found[:, :used] - expected[positions]))
    print(f"largest difference: NumPy {of_numpy:.1e}, program {of_program:.1e}")
    assert max(of_numpy, of_program) < CLOSE
    assert np.max(np.abs(found[:, used:])) < CLOSE


def test_files_of_each_kind_give_the_same(made, tmp_path):
    """state_dicts without and with torch, and a whole module, which says what its options are."""
    theirs, keys = made()
    words = ["--heads", keys["num_heads"], "--train-length", TRAINED]
    plain, pickled, whole = (tmp_path / f"{name}.safetensors" for name in ("plain", "pickled", "whole"))
    assert import_goat_attention.main([str(w) for w in (theirs / "state.safetensors", plain, *words)]) == 0
    with_torch(theirs / "state.pt", pickled, *words)
    said = with_torch(theirs / "module.pt", whole, "--trust-pickle").stdout
    assert "data.seq_len = 24" in said and "prior.lane_dim = 6" in said and "model.width = 68" in said
    expected = load_file(plain)
    assert "blocks.0.attn.prior.sink.w2" in expected
    for path in (pickled, whole):
        found = load_file(path)
        assert found.keys() == expected.keys()
        assert all(np.array_equal(found[name], value) for name, value in expected.items())


def with_torch(*words, code=0):
    script = REPOSITORY / "scripts" / "import_goat_attention.py"
    done = subprocess.run(
        [str(w) for w in (PEER, script, *words)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == code, done.stderr
    return done


def test_the_scale_of_the_prior_is_folded_in(ask, made, rng, tmp_path):
    theirs, keys = made(prior_scale=0.5)
    state = load_file(theirs / "state.safetensors")
    layer = layer_of("layer", state, keys["num_heads"], prior_scale=0.5)
    norm, embedding, normed = normed_embeddings(rng, 68, 64, 70)
    prefix = rng.integers(70, size=LENGTH)
    expected = np.array(ask("attention_output", folder=theirs, x=normed[prefix, :64].tolist()))
    ours = through_numpy(config_of(layer, 70), one_layer(layer, norm, embedding), normed[prefix])
    assert np.max(np.abs(ours[:, :64] - expected)) < CLOSE
    with_torch(theirs / "module.pt", tmp_path / "out.safetensors", "--trust-pickle")
    found = load_file(tmp_path / "out.safetensors")
    np.testing.assert_array_equal(found["blocks.0.attn.prior.slope"], layer.tensors["prior.slope"])


def test_heads_of_a_size_that_kernels_have(ask, made, rng):
    theirs, keys = made()
    layer = layer_of("layer", load_file(theirs / "state.safetensors"), keys["num_heads"], head_dim=32)
    assert (layer.model["width"], layer.prior["lane_dim"]) == (128, 32 - 11)
    norm, embedding, normed = normed_embeddings(rng, 128, 64, 130)
    prefix = rng.integers(130, size=LENGTH)
    expected = np.array(ask("attention_output", folder=theirs, x=normed[prefix, :64].tolist()))
    ours = through_numpy(config_of(layer, 130), one_layer(layer, norm, embedding), normed[prefix])
    assert np.max(np.abs(ours[:, :64] - expected)) < CLOSE


def test_frequencies_that_are_not_geometric_become_learned_ones(made):
    theirs, keys = made({"pos_rank": 3})
    state = load_file(theirs / "state.safetensors")
    state["rel_freqs_base"] = np.array([0.9, 0.2, 0.1], np.float32)
    layer = layer_of("layer", state, keys["num_heads"])
    assert layer.prior["learned_frequencies"]
    np.testing.assert_array_equal(layer.tensors["prior.frequency"], state["rel_freqs_base"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"prior_gate": "query_norm"}, "prior_gate is 'query_norm'"),
        ({"pos_encoding": "2d"}, "pos_encoding is '2d'"),
        ({"pos_encoding": "auto"}, "pos_encoding is 'auto'"),
        ({"add_zero_attn": True}, "add_zero_attn is True"),
        ({"add_bias_kv": True}, "add_bias_kv is True"),
        ({"training_seq_len": None}, "training_seq_len=None"),
    ],
)
def test_options_that_the_program_does_not_have(made, tmp_path, options, words):
    theirs, _ = made(options)
    code = 2 if "training_seq_len" in options else 3
    done = with_torch(theirs / "module.pt", tmp_path / "out.safetensors", "--trust-pickle", code=code)
    assert words in done.stderr and len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "out.safetensors").exists()


def test_states_that_the_program_does_not_have(made, tmp_path, capsys):
    theirs, keys = made()
    state = load_file(theirs / "state.safetensors")
    out = tmp_path / "out.safetensors"

    def refused(changes, *words, code=3):
        save_file(
            {k: v for k, v in (state | changes).items() if v is not None}, tmp_path / "changed.safetensors"
        )
        given = words or ("--heads", "4", "--train-length", "24")
        capsys.readouterr()
        assert import_goat_attention.main([str(tmp_path / "changed.safetensors"), str(out), *given]) == code
        assert not out.exists()
        return capsys.readouterr().err

    gate = state["prior_gate_bias"] + np.float32(0.1)
    assert "prior_gate='query_norm' has been trained" in refused({"prior_gate_bias": gate})
    assert "add_bias_kv" in refused({"bias_k": np.zeros((1, 1, 64), np.float32)})
    assert "does not have: rotor" in refused({"rotor": np.zeros(2, np.float32)})
    assert "has no GoatAttention layer" in refused({"lambda_sym": None})
    assert "'out_proj.weight' is missing" in refused({"out_proj.weight": None})
    assert "no kdim" in refused({"k_proj.weight": np.zeros((64, 32), np.float32)})
    assert "abs_freqs_base is no geometric" in refused({"abs_freqs_base": np.ones(4, np.float32) / 2})
    assert "not finite" in refused({"sink_bump": np.full(4, np.nan, np.float32)})
    assert "give --heads" in refused({}, "--heads", "3", "--train-length", "24")
    assert "leave no dimension" in refused({}, "--heads", "16", "--train-length", "24")
    assert "--head-dim 16 is too small" in refused(
        {}, "--heads", "4", "--train-length", "24", "--head-dim", "16"
    )
    assert "--train-length is missing" in refused({}, "--heads", "4", code=2)
    assert "--heads is missing" in refused({}, "--train-length", "24", code=2)


def test_a_module_is_not_read_without_trust(made, tmp_path):
    theirs, _ = made()
    done = with_torch(theirs / "module.pt", tmp_path / "out.safetensors", "--heads", "4", code=3)
    assert "--trust-pickle" in done.stderr


def test_layers_of_a_model_are_found_in_their_order(made, tmp_path):
    first, keys = made(name="first")
    second, _ = made(name="second")
    model = {"wte.weight": np.zeros((3, 64), np.float32)}
    for n, folder in enumerate((first, second)):
        model |= {f"h.{n}.attn.{k}": v for k, v in load_file(folder / "state.safetensors").items()}
    save_file(model, tmp_path / "model.safetensors")
    words = [tmp_path / "model.safetensors", tmp_path / "out.safetensors", "--heads", 4, "--train-length", 24]
    assert import_goat_attention.main([str(word) for word in words]) == 0
    found = load_file(tmp_path / "out.safetensors")
    layer = layer_of("second", load_file(second / "state.safetensors"), 4)
    assert len(found) == 2 * len(layer.tensors)
    for name, value in layer.tensors.items():
        np.testing.assert_array_equal(found[f"blocks.1.attn.{name}"], value)
