"""Files as `train_gpt_goat analyze` leaves them in a run's folder, made without it."""

import json

import numpy as np

LAYERS, HEADS, LENGTH, SEQUENCES = 2, 3, 40, 2


def sink_parts(rng, layers=LAYERS, heads=HEADS, length=LENGTH, slope=0.1):
    """Arrays [L, H, T] by the names of their files."""
    slopes = rng.uniform(-slope, slope, size=(layers, heads, 1))
    parts = {
        "sink_slope": slopes * np.arange(length),
        "sink_mlp": rng.normal(size=(layers, heads, length)),
        "sink_bump": np.zeros((layers, heads, length)),
    }
    parts["sink_bump"][..., 0] = rng.normal(size=(layers, heads))
    return parts | {"sink": sum(parts.values())}


def write_analysis(run, rng, step=40, attention="goat", has_sink=True, has_signal=True, **sizes):
    """RUN/analysis; returns the arrays by the names of their files."""
    folder = run / "analysis"
    folder.mkdir(parents=True, exist_ok=True)
    shape = {"layers": LAYERS, "heads": HEADS, "length": LENGTH} | {
        key: value for key, value in sizes.items() if key != "slope"
    }
    arrays = sink_parts(rng, **shape, slope=sizes.get("slope", 0.1)) if has_sink else {}
    if has_signal:
        extent = (shape["layers"], shape["heads"], SEQUENCES, shape["length"])
        signal = rng.uniform(size=(*extent, 4)).astype(np.float32)
        signal[..., 0] *= 5
        arrays["signal_vs_sink"] = signal
    for name, values in arrays.items():
        np.save(folder / f"{name}.npy", values)
    summary = {"step": step, "attention": attention} | shape
    (folder / "analysis.json").write_text(json.dumps(summary))
    return arrays
