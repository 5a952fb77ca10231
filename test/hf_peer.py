"""What `transformers` makes of folders, for test_hf_peer.py, which starts it with the Python of .venv-hf.

Reads a JSON object a line from stdin, {"do": NAME, ...}, and answers with one a line on stdout.
"""

import functools
import json
import os
import sys

os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "TRANSFORMERS_VERBOSITY": "error"}

answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what libraries print goes to stderr

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "scripts"))

import torch  # noqa: E402
import transformers  # noqa: E402

torch.set_num_threads(1)
torch.set_grad_enabled(False)


@functools.lru_cache(maxsize=1)
def model_of(folder, dtype):
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, trust_remote_code=True, dtype=getattr(torch, dtype)
    ).eval()


def versions():
    return {"torch": torch.__version__, "transformers": transformers.__version__}


def describe(folder, dtype="float32"):
    model = model_of(folder, dtype)
    parameters = {name: str(value.dtype) for name, value in model.named_parameters()}
    return {"class": type(model).__name__, "parameters": parameters, "count": model.num_parameters()}


def losses(folder, tokens, targets, dtype="float32"):
    """-log softmax(logits)[target], [B, T]."""
    logits = model_of(folder, dtype)(torch.tensor(tokens)).logits.double()
    return torch.nn.functional.cross_entropy(logits.mT, torch.tensor(targets), reduction="none").tolist()


def logits(folder, tokens, dtype="float32"):
    """Of the token after the last one, [V]."""
    return model_of(folder, dtype)(torch.tensor([tokens]), logits_to_keep=1).logits[0, -1].double().tolist()


def generate(folder, prompts, count, dtype="float32", cache=True):
    """The `count` most likely tokens after each prompt; shorter prompts are padded on the left."""
    longest = max(map(len, prompts))
    padded = [[0] * (longest - len(prompt)) + prompt for prompt in prompts]
    mask = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    made = model_of(folder, dtype).generate(
        torch.tensor(padded),
        attention_mask=torch.tensor(mask),
        max_new_tokens=count,
        do_sample=False,
        use_cache=cache,
        eos_token_id=None,
        pad_token_id=0,
    )
    return made[:, longest:].tolist()


def code_of(model):
    """The module of an exported folder's modeling_goat.py."""
    return sys.modules[type(model).__module__]


def chunked(folder, tokens, cuts, dtype="float32"):
    """Logits [T, V] of a sequence that is given in pieces, with the cache and its length."""
    model, parts, given = model_of(folder, dtype), [], {"total_length": len(tokens)}
    name = code_of(model).CACHE
    for begin, end in zip([0, *cuts], [*cuts, len(tokens)], strict=True):
        out = model(torch.tensor([tokens[begin:end]]), use_cache=True, **given)
        given[name] = out[name]
        parts.append(out.logits[0])
    return torch.cat(parts).double().tolist()


def shown(folder, tokens, mask):
    """Logits of the tokens that the mask shows, [shown, V]."""
    mask = torch.tensor([mask])
    logits = model_of(folder, "float32")(torch.tensor([tokens]), attention_mask=mask.long()).logits
    return logits[mask].double().tolist()


def lost_in_the_cache(folder, length, dtype):
    """Greatest error of F_ij, j = i-1 and j = 0, by |F_ij| + 0.01, from a cache of `length` tokens that has
    `dtype`. Logarithms of gates reach from -1e-6 to -100."""
    module, generator = code_of(model_of(folder, "float32")), torch.Generator().manual_seed(1)
    size = model_of(folder, "float32").blocks[0].attn.head_dim
    logs = -torch.logspace(-6, 2, length)[torch.randperm(length, generator=generator)]
    logs = logs[None, None, :, None] * torch.rand(1, 2, 1, 3, generator=generator)
    v = torch.rand(1, 2, length, size, generator=generator).to(getattr(torch, dtype))
    stored = torch.cat([v, module.stored_as(v.dtype, logs)], -1)
    kept, sums = module.Forget.split(None, stored, size)
    assert torch.equal(kept, v) and sums.shape == (1, 6, length)
    logs = logs.double().transpose(-1, -2).flatten(1, 2)
    near, far = logs[..., 1:], logs[..., 1:].cumsum(-1)
    pairs = ((sums.diff(), near), (sums[..., 1:] - sums[..., :1], far))
    return max(((found - exact).abs() / (exact.abs() + 0.01)).max().item() for found, exact in pairs)


def blocks_of_queries(folder, tokens, most):
    """Logits [T, V] where the prior's biases are made `most` elements at a time."""
    model = model_of(folder, "float32")
    module = code_of(model)
    usual, module.MOST_BIASES = module.MOST_BIASES, most
    try:
        return model(torch.tensor([tokens])).logits[0].double().tolist()
    finally:
        module.MOST_BIASES = usual


def loss_of_labels(folder, tokens):
    return model_of(folder, "float32")(torch.tensor([tokens]), labels=torch.tensor([tokens])).loss.item()


def tokens_of(folder, text):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    ids = tokenizer(text).input_ids
    return {"ids": ids, "text": tokenizer.decode(ids, skip_special_tokens=True)}


def make(folder, kind, keys, seed, dtype="float32", shard="5GB"):
    """Saves a model with random weights."""
    torch.manual_seed(seed)
    config = getattr(transformers, f"{kind}Config")(initializer_range=0.3, **keys)
    model = getattr(transformers, {"Llama": "LlamaForCausalLM", "GPT2": "GPT2LMHeadModel"}[kind])(config)
    for name, value in model.named_parameters():
        if "norm" in name or "ln_" in name or name.endswith(".bias"):
            value.add_(0.3 * torch.randn_like(value))
    model.to(getattr(torch, dtype)).save_pretrained(folder, max_shard_size=shard)


def make_ours(folder, keys, seed, dtype="float32", shard="5GB"):
    """Saves a GoatForCausalLM with random weights. keys: of its config."""
    import modeling_goat

    modeling_goat.GoatConfig.register_for_auto_class()
    modeling_goat.GoatForCausalLM.register_for_auto_class("AutoModelForCausalLM")
    torch.manual_seed(seed)
    keys = {key: value for key, value in keys.items() if key != "auto_map"}
    model = modeling_goat.GoatForCausalLM(modeling_goat.GoatConfig(**keys))
    for name, value in model.named_parameters():
        if "norm" in name and name.endswith("weight"):
            value.add_(0.3 * torch.randn_like(value))
        elif name.endswith(".frequency"):
            value.uniform_(0.01, 1)
        else:
            value.normal_(std=0.3)
    model.to(getattr(torch, dtype)).save_pretrained(folder, max_shard_size=shard)


def refusal(folder, tokens):
    """What the model says of a sequence that it does not take."""
    try:
        model_of(folder, "float32")(torch.tensor([tokens]))
    except ValueError as error:
        return str(error)
    return ""


# The package goat-attention


def make_attention(folder, options, seed, prior_scale=1.0):
    """A GoatAttention with random weights: module.pt, and its state_dict in state.pt and .safetensors."""
    import importlib.metadata

    import goat
    from safetensors.torch import save_file

    torch.manual_seed(seed)
    module = goat.GoatAttention(batch_first=True, **options).eval()
    for name, value in module.named_parameters():
        if name == "recency_slope_raw":
            value.uniform_(-5, 0)
        elif not name.startswith("prior_gate") and (
            value.ndim < 2 or name.startswith(("lambda", "key_bias"))
        ):
            value.add_(0.6 * torch.randn_like(value))
    module.set_goat_prior_scale(prior_scale)
    os.makedirs(folder)
    torch.save(module, f"{folder}/module.pt")
    torch.save(module.state_dict(), f"{folder}/state.pt")
    save_file(module.state_dict(), f"{folder}/state.safetensors")
    return importlib.metadata.version("goat-attention")


def attention_output(folder, x):
    """[T, E] of causal self-attention on x [T, E]."""
    module, x = torch.load(f"{folder}/module.pt", weights_only=False), torch.tensor([x])
    return module(x, x, x, is_causal=True, need_weights=False)[0][0].double().tolist()


def has_package(name):
    import importlib.util

    return importlib.util.find_spec(name) is not None


for line in sys.stdin:
    request = json.loads(line)
    answer = globals()[request.pop("do")](**request)
    print(json.dumps(answer), file=answers, flush=True)
