#!/usr/bin/env python3
"""Times training steps of the same GPT in PyTorch on the CPU, fp32: the peer that bench_step is measured
against.

  bench_torch.py --form eager     attention written out: q k^T, mask, softmax, times v
  bench_torch.py --form sdpa      torch.nn.functional.scaled_dot_product_attention

Both have a tied head, a padded vocabulary, GELU in its tanh form and AdamW; none has a prior. OMP_NUM_THREADS
sets the threads. The last line is "ms_per_step X tokens_per_second Y", medians over the timed steps.
"""

import argparse
import math
import os
import statistics
import time

import torch
from torch import nn
from torch.nn import functional

VOCAB, PADDED_VOCAB, LAYERS, HEADS, WIDTH = 50257, 50304, 6, 6, 384
WARM_UP_STEPS = 2


def written_out_attention(q, k, v):
    length = q.size(2)
    hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
    logits = (q @ k.transpose(2, 3)) / math.sqrt(q.size(3))
    return logits.masked_fill(hidden, -math.inf).softmax(3) @ v


def fused_attention(q, k, v):
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True)


class Block(nn.Module):
    def __init__(self, attention):
        super().__init__()
        self.attention = attention
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        x = x + self.out(self.attention(q, k, v).transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, attention, length):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(PADDED_VOCAB, WIDTH), nn.Embedding(length, WIDTH)
        self.blocks = nn.ModuleList(Block(attention) for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, inputs, targets):
        x = self.tokens(inputs) + self.positions(torch.arange(inputs.size(1)))
        for block in self.blocks:
            x = block(x)
        logits = functional.linear(self.norm(x), self.tokens.weight)
        return functional.cross_entropy(logits.view(-1, PADDED_VOCAB), targets.view(-1))


def timed_step(model, optimizer, batch, length):
    inputs, targets = torch.randint(0, VOCAB, (2, batch, length))
    start = time.perf_counter()
    loss = model(inputs, targets)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    loss.item()
    return time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--form", choices=["eager", "sdpa"], default="sdpa")
    parser.add_argument(
        "--fused", action="store_true", help="AdamW as one fused operation (not PyTorch's default on a CPU)"
    )
    parser.add_argument("--compile", action="store_true", help="torch.compile the model")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--steps", type=int, default=10)
    options = parser.parse_args()

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", os.cpu_count())))
    torch.manual_seed(0)
    model = Gpt(fused_attention if options.form == "sdpa" else written_out_attention, options.length)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=options.fused or None
    )
    step = torch.compile(model) if options.compile else model
    seconds = [
        timed_step(step, optimizer, options.batch, options.length)
        for _ in range(WARM_UP_STEPS + options.steps)
    ]
    median = statistics.median(seconds[WARM_UP_STEPS:])
    print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads, {options.form}, T {options.length}, "
        f"B {options.batch}"
    )
    print(f"ms_per_step {1e3 * median:.1f} tokens_per_second {options.batch * options.length / median:.1f}")


if __name__ == "__main__":
    main()
