#!/usr/bin/env python3
"""Times PyTorch's attention at the shapes of gpu_kernels' attention sections, through each backend that is
there: FlashAttention-2, cuDNN, efficient.

  gpu_torch_attention.py --output torch_attention.json

bf16, B T = 16,384 tokens, H d_h = 2048, causal, and one non-causal length. FLOPs as in FlashAttention's
benchmark: 4 B T^2 H d_h, half of it if causal; backward 2.5 times that. q, k and v are views of one packed
[B, T, 3, H, d_h], as in the trainer; no prior: none of the backends has one.
"""

import argparse
import json
import statistics
import sys
import time


def load_torch():
    try:
        import torch

        if not torch.cuda.is_available():
            return None, "no CUDA device in torch"
        return torch, ""
    except Exception as error:  # a torch that cannot be loaded is as good as none
        return None, f"{type(error).__name__}: {error}"


def backends(torch):
    from torch.nn.attention import SDPBackend

    names = {"flash": "FLASH_ATTENTION", "cudnn": "CUDNN_ATTENTION", "efficient": "EFFICIENT_ATTENTION"}
    return {
        name: getattr(SDPBackend, attribute)
        for name, attribute in names.items()
        if hasattr(SDPBackend, attribute)
    }


def seconds_of(torch, call):
    """Median of three rounds of about 12 ms, after warm-up."""

    def round_of(repetitions):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(repetitions):
            call()
        torch.cuda.synchronize()
        return (time.perf_counter() - start) / repetitions

    round_of(1)
    repetitions = min(max(int(0.012 / round_of(2)), 3), 1000)
    return statistics.median(round_of(repetitions) for _ in range(3))


def time_shape(torch, backend, batch, length, heads, head_dim, causal):
    from torch.nn.attention import sdpa_kernel

    qkv = torch.rand(batch, length, 3, heads, head_dim, device="cuda", dtype=torch.bfloat16).mul_(2).sub_(1)
    q, k, v = (qkv[:, :, part].transpose(1, 2).detach().requires_grad_() for part in range(3))
    dout = torch.rand(batch, length, heads, head_dim, device="cuda", dtype=torch.bfloat16).transpose(1, 2)
    flops = 4 * batch * length * length * heads * head_dim * (0.5 if causal else 1)
    with sdpa_kernel(backend):
        attend = lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
        with torch.no_grad():
            forward = seconds_of(torch, attend)
        out = attend()
        backward = seconds_of(torch, lambda: torch.autograd.grad(out, (q, k, v), dout, retain_graph=True))
    return {
        "forward_microseconds": round(forward * 1e6, 2),
        "forward_tflops_per_second": round(flops / forward / 1e12, 1),
        "backward_microseconds": round(backward * 1e6, 2),
        "backward_tflops_per_second": round(2.5 * flops / backward / 1e12, 1),
    }


def shapes(tokens):
    for head_dim in (64, 128):
        heads = 2048 // head_dim
        length = 512
        while length <= tokens:
            yield tokens // length, length, heads, head_dim, True
            length *= 2
        yield tokens // 2048, 2048, heads, head_dim, False


def measure(torch, seconds):
    results, start = [], time.perf_counter()
    for name, backend in backends(torch).items():
        for batch, length, heads, head_dim, causal in shapes(16384):
            result = {"backend": name, "d_h": head_dim, "T": length, "B": batch, "H": heads, "causal": causal}
            if time.perf_counter() - start > seconds:
                result["skipped"] = "the time was used up"
            else:
                try:
                    result.update(time_shape(torch, backend, batch, length, heads, head_dim, causal))
                except Exception as error:  # a backend that does not take this shape or this GPU
                    result["error"] = str(error).splitlines()[0][:300] if str(error) else type(error).__name__
            results.append(result)
    return results


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", help="file for the JSON (default: standard output)")
    parser.add_argument("--seconds", type=float, default=25, help="after which the rest is left out")
    options = parser.parse_args()
    torch, reason = load_torch()
    if torch is None:
        report = {"torch": None, "reason": reason, "results": []}
    else:
        report = {
            "torch": torch.__version__,
            "cudnn": torch.backends.cudnn.version(),
            "device": torch.cuda.get_device_name(),
        }
        try:
            report["results"] = measure(torch, options.seconds)
        except Exception as error:
            report |= {"error": f"{type(error).__name__}: {error}", "results": []}
    text = json.dumps(report, indent=1)
    if options.output:
        with open(options.output, "w", encoding="utf-8") as file:
            file.write(text + "\n")
    else:
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
