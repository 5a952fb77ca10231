"""The weights of a model among ranks, as the program lays them out: parameters in units, groups of them in
flat arrays, arrays in buckets (train/model/model_parameters.cpp, train/memory/parameters.cpp, sharding.cpp).

Units are numbered in the order in which a backward pass completes them: 0 is the final norm (and the head, if
it has weights of its own), 1 to L the blocks from the last to the first, L + 1 the embedding.
"""

from dataclasses import dataclass

CHUNK = 32_768  # elements: a piece of a bucket consists of whole chunks
ALIGNMENT = 64  # elements: every parameter begins at a multiple
MIB = 1 << 20


@dataclass(frozen=True)
class Parameter:
    unit: int
    role: str  # matrix, bias or vector
    elements: int


def _prior(config, unit):
    """The learned prior of one block; a vector each."""
    prior, heads = config["prior"], config["model"]["heads"]
    features = 2 * prior["abs_rank"] + 2
    hidden = prior.get("sink_hidden") or min(2 * features, max(2 * heads, 4))
    sizes = [heads * prior["pos_rank"]] * 2 + [heads, hidden * features, hidden, heads * hidden]
    if prior.get("recency", "free") != "off":
        sizes.append(heads)
    return [Parameter(unit, "vector", size) for size in sizes]


def _block(config, unit):
    model = config["model"]
    width, llama = model["width"], model.get("block", "gpt") == "llama"
    hidden = model.get("ff_width") or 4 * width
    norm = [Parameter(unit, "vector", width)] * (1 if llama else 2)

    def linear(outputs, inputs):
        weight = [Parameter(unit, "matrix", outputs * inputs)]
        return weight if llama else [*weight, Parameter(unit, "bias", outputs)]

    mlp = linear((2 if llama else 1) * hidden, width) + linear(width, hidden)
    attention = linear(3 * width, width) + _prior(config, unit) + linear(width, width)
    return [*norm, *attention, *norm, *mlp]


def parameters_of(config):
    """All parameters of a model with the learned prior and a tied head, in the order of declaration."""
    model = config["model"]
    padded_vocab = (model["vocab"] + 63) // 64 * 64
    layers, width = model["layers"], model["width"]
    parameters = [Parameter(layers + 1, "matrix", padded_vocab * width)]
    for layer in range(layers):
        parameters += _block(config, layers - layer)
    norms = 1 if model.get("block", "gpt") == "llama" else 2
    return parameters + [Parameter(0, "vector", width)] * norms


def trainable(config):
    """As the program counts: without what pads the vocabulary, and without the rows of q and k that the lanes
    of the prior overwrite."""
    model, prior = config["model"], config["prior"]
    lanes = prior.get("lane_dim") or 2 * prior["pos_rank"] + 2
    biases = model.get("block", "gpt") == "gpt"
    unused = (-model["vocab"] % 64) * model["width"]
    unused += 2 * model["layers"] * model["heads"] * lanes * (model["width"] + biases)
    return sum(parameter.elements for parameter in parameters_of(config)) - unused


@dataclass(frozen=True)
class Group:
    """A flat array: what has one dtype and one kind of decay."""

    value_bytes: int  # of an element of the weights, as the passes read them
    ends: tuple  # (unit, element after its last one), in the order of the backward pass

    @property
    def elements(self):
        return self.ends[-1][1]

    def units_of(self, first, end):
        """(first, last) unit that has elements in [first, end)."""
        starts = [0, *(stop for _, stop in self.ends)]
        inside = [unit for (unit, stop), start in zip(self.ends, starts) if start < end and stop > first]
        return inside[0], inside[-1]


def groups_of(config, matrix_bytes=2):
    """Groups in the order of declaration. Vectors are f32 in every model, and in a model in f32 biases are in
    a group with them."""
    groups = {}
    for parameter in parameters_of(config):
        value_bytes = 4 if parameter.role == "vector" else matrix_bytes
        groups.setdefault((value_bytes, parameter.role == "matrix"), []).append(parameter)
    return [_group(value_bytes, parameters) for (value_bytes, _), parameters in groups.items()]


def _group(value_bytes, parameters):
    ends, end = [], 0
    for unit in sorted({parameter.unit for parameter in parameters}):
        own = [parameter.elements for parameter in parameters if parameter.unit == unit]
        end += sum((elements + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT for elements in own)
        ends.append((unit, end))
    return Group(value_bytes, tuple(ends))


@dataclass(frozen=True)
class Bucket:
    elements: int  # the padding at the end of an array included
    value_bytes: int
    first_unit: int  # the units that reach into it, from this
    last_unit: int  # to this one


def default_bucket_bytes(ranks):
    return max(64, 2 * ranks) * MIB


def buckets_of(group, ranks, bucket_bytes):
    """One rank has one bucket. Among several, each is a multiple of ranks x CHUNK elements."""
    if ranks == 1:
        return [Bucket(group.elements, group.value_bytes, group.ends[0][0], group.ends[-1][0])]
    row = ranks * CHUNK
    length = max(1, bucket_bytes // 4 // row) * row
    end = -(-group.elements // row) * row
    return [
        Bucket(min(length, end - first), group.value_bytes, *group.units_of(first, first + length))
        for first in range(0, end, length)
    ]


def model_buckets(config, ranks, bucket_bytes=0):
    """All buckets, group by group, each in the order of the backward pass."""
    size = bucket_bytes or default_bucket_bytes(ranks)
    return [bucket for group in groups_of(config) for bucket in buckets_of(group, ranks, size)]
