"""One training step among many GPUs, simulated: what each transfer takes, and what the passes hide of it.

Pure functions of inputs (dev/scaling_model.py lists them), a cluster, options and the buckets of a model
(dev/scaling_layout.py). All times in milliseconds, all sizes in bytes.
"""

from dataclasses import dataclass, replace
from math import isclose, log2

FLAGS = 4  # doubles that a rank reports beside its losses and squares
CHUNK = 32_768  # elements: squares are summed by chunks
LONGEST, MEAN = 36, 12  # steps that are simulated at most, and of which the mean is taken
SQUARES, UPDATE = 4, 30  # bytes of memory traffic an element: SquaredSums; AdamW in bf16 with masters


@dataclass(frozen=True)
class Options:
    wire: str = "f32"  # gradients travel as f32 or bf16
    reduce: str = "ordered"  # all-to-all and SumParts, or nccl: a ring reduce-scatter
    levels: int = 2  # 1: all ranks at once; 2: inside the nodes and between them, where there are several
    streams: int = 1  # 2: the transfers between nodes have a stream of their own
    bucket_mib: int = 0  # 0: the program's default


@dataclass(frozen=True)
class Cluster:
    gpus: int
    per_node: int

    @property
    def nodes(self):
        return self.gpus // self.per_node


def cluster_of(gpus, gpus_per_node):
    per_node = min(gpus, int(gpus_per_node))
    if gpus < 1 or gpus % per_node:
        raise ValueError(f"{gpus} GPUs are no whole nodes of {per_node}")
    return Cluster(gpus, per_node)


def moved(size, gigabytes_per_second):
    return size / gigabytes_per_second / 1e6


def ring(x, size, gpus, nodes):
    """A ring reduce-scatter or all-gather whose result, or input, of all ranks together has `size` bytes."""
    if gpus == 1:
        return 0.0
    steps = (gpus - nodes) * x.nvlink_step + (nodes - 1) * x.network_step
    if gpus == nodes:  # one GPU a node
        speed = x.network_gpu
    else:
        speed = x.network_ring if nodes > 1 else x.nvlink_ring
    return (x.call + steps) / 1e3 + moved(size * (gpus - 1) / gpus, speed)


def pat(x, size, nodes):
    """The all-gather of NCCL among one GPU a node that takes log2 steps."""
    latency = x.pat_call + log2(nodes) * x.network_step / 3.5 + nodes * x.pat_rank
    return latency / 1e3 + moved(size * (nodes - 1) / nodes, 0.75 * x.network_gpu)


def between_nodes(x, size, nodes):
    """All-gather of `size` bytes among the GPUs of equal index in their nodes."""
    return min(ring(x, size, nodes, nodes), pat(x, size, nodes)) if nodes > 1 else 0.0


def kernel(x, size):
    """A kernel of the communication stream that moves `size` bytes of GPU memory."""
    return x.launch / 1e3 + moved(size, x.memory)


def all_to_all(x, size, cluster):
    """Among all ranks at once: what leaves a node and what stays in it travel at the same time."""
    gpus, local = cluster.gpus, cluster.per_node
    step = x.network_step if cluster.nodes > 1 else x.nvlink_step
    transfer = max(
        moved(size * (local - 1) / gpus, x.nvlink_all_to_all),
        moved(size * (gpus - local) / gpus, x.network_gpu),
    )
    return (x.call + step + (gpus - 1) * x.peer) / 1e3 + transfer


def adding(x, gradients, out, wire):
    """The kernels around a transfer of `gradients` bytes in f32: rounding to bf16, and SumParts to `out`."""
    if wire == "f32":
        return kernel(x, gradients + out)
    return kernel(x, gradients * 3 / 2) + kernel(x, gradients / 2 + out)


def ordered_stages(x, gradients, size, cluster, options):
    """Of all-to-all and SumParts; `size` bytes on the wire."""
    local, nodes = cluster.per_node, cluster.nodes
    if options.levels == 1 or nodes == 1:
        sums = adding(x, gradients, gradients / cluster.gpus, options.wire)
        return [("network" if nodes > 1 else "nvlink", all_to_all(x, size, cluster) + sums)]
    inside = all_to_all(x, size, Cluster(local, local)) if local > 1 else 0.0
    between = (x.call + x.network_step + (nodes - 1) * x.peer) / 1e3
    between += moved(size / local * (nodes - 1) / nodes, x.network_gpu)
    return [
        ("nvlink", inside + adding(x, gradients, gradients / local, options.wire)),
        ("network", between + adding(x, gradients / local, gradients / cluster.gpus, options.wire)),
    ]


def reduce_stages(x, bucket, cluster, options):
    """[(level, ms)] of the sum of one bucket's gradients: each rank gets its piece."""
    if cluster.gpus == 1:
        return []
    gradients = 4 * bucket.elements
    size = gradients if options.wire == "f32" else gradients / 2
    if options.reduce == "ordered":
        return ordered_stages(x, gradients, size, cluster, options)
    cast = kernel(x, gradients + size) if options.wire == "bf16" else 0.0
    copied = kernel(x, (size + gradients) / cluster.gpus)  # NCCL's sum, to its place
    level = "network" if cluster.nodes > 1 else "nvlink"
    return [(level, cast + ring(x, size, cluster.gpus, cluster.nodes) + copied)]


def gather_stages(x, bucket, cluster, options):
    """[(level, ms)] of the all-gather of one bucket's weights, as the passes read them; network first."""
    if cluster.gpus == 1:
        return []
    size, nodes, local = bucket.elements * bucket.value_bytes, cluster.nodes, cluster.per_node
    if nodes == 1 or options.levels == 1 or options.reduce == "nccl":
        return [("network" if nodes > 1 else "nvlink", ring(x, size, cluster.gpus, nodes))]
    return [("network", between_nodes(x, size / local, nodes)), ("nvlink", ring(x, size, local, 1))]


def report(x, buckets, cluster):
    """The all-gather of losses and squares before the update, among all ranks at once, in small messages."""
    gpus, nodes = cluster.gpus, cluster.nodes
    if gpus == 1:
        return 0.0
    size = 8 * (sum(bucket.elements for bucket in buckets) // CHUNK + gpus * (FLAGS + 1))
    steps = (gpus - nodes) * x.small_nvlink_step + (nodes - 1) * x.small_network_step
    return (x.small_call + steps) / 1e3 + moved(size, (x.network_gpu if nodes > 1 else x.nvlink_ring) / 2)


class Streams:
    """The communication streams. What is enqueued on a stream runs in order."""

    def __init__(self, streams, busy=()):
        self.alone, self.free = streams == 1, dict(busy)

    def run(self, ready, stages):
        """When these stages, one after the other, are done; the first can begin at `ready`."""
        for level, milliseconds in stages:
            stream = "" if self.alone else level
            ready = max(ready, self.free.get(stream, 0.0)) + milliseconds
            self.free[stream] = ready
        return ready


def in_a_row(list_of_stages, streams):
    """Transfers back to back, with nothing else."""
    lane = Streams(streams)
    return max((lane.run(0.0, stages) for stages in list_of_stages), default=0.0)


@dataclass(frozen=True)
class Work:
    """What a rank computes in a step, by units in the order of the backward pass (dev/scaling_layout.py)."""

    forward: tuple  # ms of each unit in a micro-batch
    backward: tuple
    micro_batches: int

    @property
    def total(self):
        return self.micro_batches * (sum(self.forward) + sum(self.backward))


@dataclass(frozen=True)
class Bucket:
    """A bucket with its costs."""

    first_unit: int  # units `first_unit` to `last_unit` need its weights
    last_unit: int
    ready_unit: int  # with the gradient of this unit its own is complete
    reduce: tuple  # stages
    gather: tuple
    squares: float
    update: float


def with_costs(x, bucket, cluster, options):
    own = bucket.elements / cluster.gpus
    return Bucket(
        first_unit=bucket.first_unit,
        last_unit=bucket.last_unit,
        ready_unit=bucket.last_unit,
        reduce=tuple(reduce_stages(x, bucket, cluster, options)),
        gather=tuple(gather_stages(x, bucket, cluster, options)),
        squares=x.launch / 1e3 + moved(SQUARES * own, x.memory),
        update=x.launch / 1e3 + moved(UPDATE * own, x.adamw),
    )


@dataclass(frozen=True)
class Step:
    """Times of a step. What goes on after its update is told from the end of the update on."""

    total: float  # from update to update
    tail: float  # from the end of the backward pass until the last sum is there
    gathered: tuple  # when the weights of each bucket are there
    busy: tuple  # (stream, until when)


def passes(work, buckets, gathered):
    """When each unit's gradient is complete, from the start of the first forward pass on. It waits before a
    unit for the weights of all buckets that the unit reaches into."""
    clock = 0.0
    for unit in reversed(range(len(work.forward))):
        for bucket, arrival in zip(buckets, gathered):
            if bucket.first_unit <= unit <= bucket.last_unit:
                clock = max(clock, arrival)
        clock += work.forward[unit]
    clock += (work.micro_batches - 1) * (sum(work.forward) + sum(work.backward))
    done = []
    for milliseconds in work.backward:
        clock += milliseconds
        done.append(clock)
    return done


def one_step(work, buckets, reporting, streams, before):
    """The step after the step `before`."""
    done = passes(work, buckets, before.gathered)
    lane = Streams(streams, before.busy)
    by_ready = sorted(buckets, key=lambda bucket: bucket.ready_unit)
    sums = [lane.run(done[bucket.ready_unit], bucket.reduce) for bucket in by_ready]
    clock = max([done[-1], *sums])
    tail = clock - done[-1]
    clock += sum(bucket.squares for bucket in buckets)
    clock = lane.run(clock, [("nvlink", reporting)])
    arrived = [0.0] * len(buckets)
    for index in sorted(range(len(buckets)), key=lambda index: -buckets[index].last_unit):  # needed first
        clock += buckets[index].update
        arrived[index] = lane.run(clock, buckets[index].gather)
    gathered = tuple(max(0.0, when - clock) for when in arrived)
    return Step(clock, tail, gathered, tuple((name, when - clock) for name, when in lane.free.items()))


def steady_step(work, buckets, reporting, streams):
    """A step in the middle of a run: its weights arrive as its own leave. Where steps alternate, which takes
    transfers much longer than passes, `total` is their mean."""
    step, totals = Step(0.0, 0.0, (0.0,) * len(buckets), ()), []
    for _ in range(LONGEST):
        before, step = step, one_step(work, buckets, reporting, streams, step)
        totals.append(step.total)
        if isclose(before.total, step.total) and all(map(isclose, before.gathered, step.gathered)):
            return step
    return replace(step, total=sum(totals[-MEAN:]) / MEAN)


def step_without_overlap(work, buckets, reporting, streams):
    """The same with everything one after the other."""
    kernels = sum(bucket.squares + bucket.update for bucket in buckets)
    sums = in_a_row([bucket.reduce for bucket in buckets], streams)
    gathers = in_a_row([bucket.gather for bucket in buckets], streams)
    return work.total + sums + kernels + reporting + gathers
