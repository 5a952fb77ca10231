"""dev/predict_step.py: the sum of measured kernels is the predicted step."""

import copy
import json
import re
import sys

import pytest

from conftest import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "dev"))
import predict_step  # noqa: E402
from predict_step import DEFAULT, MODELS, Kernels, Missing, grouped, predict, preset  # noqa: E402

CHECKS = [json.loads(path.read_text()) for path in DEFAULT]


def kernels_of(check):
    return Kernels([check])


def rows_of(check):
    return [row for section in check["kernels"]["result"]["sections"] for row in section["results"]]


def output_of(capsys, *words):
    predict_step.main([str(word) for word in words])
    return capsys.readouterr().out


def test_the_committed_kernels_give_the_step_that_the_design_counts_on(capsys):
    """Sums by hand from dev/results/gpu_NVIDIA_H100_80GB_HBM3.md, ms a micro-batch."""
    by_hand = {
        "c4_125m": {
            "block GEMMs, three products": 12 * 2.32664,
            "head GEMMs": 11.127,
            "attention with the prior": 12 * 0.75 * (0.5166 + 1.8948),  # 192 of the 256 heads that were timed
            "norms": 25 * (0.07377 + 0.10184),
            "GELU or SwiGLU": 12 * (0.13638 + 0.19887),
            "prior lanes, sink, their gradients": 12 * (0.04729 + 0.01704 + 0.00498 + 0.04304),
        },
        "fineweb_1b": {
            "head GEMMs": 14.456,
            "attention with the prior": 22 * (0.5166 + 1.8948),
            "norms": 45 * (0.09442 + 0.1065),
            "GELU or SwiGLU": 22 * (0.18619 + 0.3115),
        },
    }
    kernels = Kernels(CHECKS)
    for name, groups in by_hand.items():
        predicted = grouped(predict(kernels, preset(name)))
        for group, milliseconds in groups.items():
            assert predicted[group] == pytest.approx(milliseconds, rel=1e-3), (name, group)
        assert predicted["other"] == 0
    printed = output_of(capsys)
    assert re.search(r"\| sum \| 73\.\d ms, 44\dk tokens/s, MFU 38\.\d % \| 25\d\.\d ms, 65k", printed)


@pytest.mark.parametrize("name", MODELS)
def test_the_models_are_the_programs_own(run_binary, tmp_path, name):
    """FLOPs a token as the program counts them; its matrices are all parameters but a thousandth."""
    run = run_binary("--config", name, "--dry-run", "--device", "cpu", code=3)  # no data here
    flops = float(re.search(r"FLOPs a token +(\S+)", run.stdout)[1])
    parameters = int(re.search(r"parameters, full q and k +(\d+)", run.stdout)[1])
    model = preset(name)
    assert model.flops_per_token == pytest.approx(flops, rel=1e-3)
    assert model.weights == pytest.approx(parameters, rel=2e-3)


def test_a_kernel_that_takes_longer_makes_the_step_longer_by_its_calls():
    before = sum(predict(kernels_of(CHECKS[0]), preset("c4_125m")).values())
    slower = copy.deepcopy(CHECKS[0])
    for row in rows_of(slower):
        if row["name"] == "layernorm_forward" and row["model"] == "c4_125m":
            row["microseconds"] += 1000
    after = sum(predict(kernels_of(slower), preset("c4_125m")).values())
    assert after - before == pytest.approx(25)


def test_rows_of_a_later_file_replace_the_same_ones_alone():
    changed = {
        "later": {
            "rows": [row | {"microseconds": 0.0} for row in rows_of(CHECKS[0]) if "gelu" in row["name"]]
        }
    }
    before, after = (
        grouped(predict(Kernels(c), preset("c4_125m"))) for c in ([CHECKS[0]], [CHECKS[0], changed])
    )
    assert before.pop("GELU or SwiGLU") > after.pop("GELU or SwiGLU") == 0
    assert before == after


def test_what_was_not_timed_is_named(capsys, tmp_path):
    check = copy.deepcopy(CHECKS[0])
    for section in check["kernels"]["result"]["sections"]:
        section["results"] = [row for row in section["results"] if row["name"] != "attention_backward"]
    with pytest.raises(Missing, match="attention_backward.*d_h = 64"):
        predict(kernels_of(check), preset("c4_125m"))
    (tmp_path / "check.json").write_text(json.dumps(check))
    with pytest.raises(SystemExit, match="predict_step: no kernel attention_backward"):
        predict_step.main([str(tmp_path / "check.json")])


def test_a_gpu_that_the_table_lacks_has_no_mfu_but_with_a_peak_given(capsys, tmp_path):
    (tmp_path / "check.json").write_text(
        json.dumps(CHECKS[0] | {"gpu": "NVIDIA H100 80GB HBM3 MIG 1g.10gb, 580"})
    )
    assert "MFU" not in output_of(capsys, tmp_path / "check.json")
    assert "MFU 38." in output_of(capsys, tmp_path / "check.json", "--peak-tflops", "989.4")
    assert predict_step.bf16_peak("NVIDIA A100-PCIE-40GB") == 312e12


def test_a_measured_check_stands_beside_the_prediction(capsys, tmp_path):
    measured = copy.deepcopy(CHECKS[0])
    for row in rows_of(measured):
        row["microseconds"] *= 1.5
        if "gigabytes_per_second" in row:
            row["gigabytes_per_second"] /= 1.5
    (tmp_path / "measured.json").write_text(json.dumps(measured))
    printed = output_of(capsys, DEFAULT[0], "--measured", tmp_path / "measured.json")
    assert printed.count("| 1.50 |") == 2 * 8  # seven groups and the sum, of both models


def profile_of(tmp_path, name, times, micro_batches, tokens, wall):
    model = preset(name)
    rows = [
        {"name": operation, "calls": 1, "seconds": micro_batches * milliseconds / 1e3}
        for operation, milliseconds in times.items()
    ]
    profile = {
        "micro_batches": micro_batches,
        "tokens_per_step": tokens * micro_batches,
        "step_seconds": micro_batches * wall / 1e3,
        "operations": rows,
    }
    (tmp_path / "operations.json").write_text(json.dumps(profile))
    (tmp_path / "config.toml").write_text(
        f'[model]\nblock = "{model.block}"\nlayers = {model.layers}\nheads = {model.heads}\n'
        f"width = {model.width}\nff_width = {model.hidden}\nvocab = {model.vocab}\n[prior]\npos_rank = 2\n"
        f"[data]\nseq_len = {model.length}\n[train]\nbatch = 128\n"
    )
    return tmp_path / "operations.json"


def test_a_measured_profile_stands_beside_the_prediction_by_groups(capsys, tmp_path):
    times = {"linear_forward attn.qkv": 20, "linear_backward_weight mlp.down": 30, "attention_forward": 25}
    times |= {"linear_forward head": 11, "upload": 0.5, "layernorm_backward": 5, "adamw": 1}
    file = profile_of(tmp_path, "c4_125m", times, 8, 16 * 2048, 100)
    printed = output_of(capsys, "--measured", file)
    cells = {
        row.split(" | ")[0].strip("| "): row.split(" | ")[1:] for row in printed.splitlines() if "| " in row
    }
    assert cells["block GEMMs, three products"][:2] == ["27.92", "50.00"]
    assert cells["attention with the prior"][1] == "25.00"
    assert cells["other"][1] == "0.50"
    assert cells["between operations"][1] == "7.50"
    assert cells["sum"][1] == "100.00"
    assert "measured: 100.0 ms, 328k tokens/s, MFU 28.0 %" in printed


def test_a_profile_of_another_size_is_refused(tmp_path):
    file = profile_of(tmp_path, "c4_125m", {"adamw": 1}, 16, 8 * 2048, 100)
    with pytest.raises(SystemExit, match="c4_125m in micro-batches of 16"):
        predict_step.main(["--measured", str(file)])


def test_a_profile_of_the_program_itself_is_read(run_binary, tmp_path):
    run_binary(
        *("--config", "copy_mixture", "--out", tmp_path, "--profile", "2", "--device", "cpu"),
        *("--set", "train.micro_batch=8"),
    )
    ran = predict_step.model_of(
        "own", predict_step.tomllib.loads((tmp_path / "profile/config.toml").read_text())
    )
    name, times, wall = predict_step.read_profile(
        tmp_path / "profile/operations.json", [(ran, 8 * ran.length)]
    )
    assert name == "own" and 0 < sum(times.values()) <= wall
    groups = {predict_step.group_of(operation) for operation in times}
    assert groups == set(predict_step.GROUPS) - {"GELU or SwiGLU"}  # a GPT block's GELU counts as its GEMM


def test_the_gelu_of_a_gpt_block_is_compared_within_its_gemm(capsys):
    model = preset("c4_125m")
    predicted = {"linear_forward mlp.up": 2.0, "gelu_forward": 0.5}
    predict_step.print_comparison(model, 1024, predicted, {"linear_gelu_forward mlp.up": 2.5}, None, None)
    assert re.search(r"block GEMMs, three products \| 2.50 \| 2.50 \| 1.00", capsys.readouterr().out)
