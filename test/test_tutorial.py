"""dev/attention.md: its Python holds, and its figure can be drawn."""

import re
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
TUTORIAL = REPOSITORY / "dev/attention.md"


def test_the_python_of_the_tutorial_holds():
    blocks = re.findall(
        r"^```python\n(.*?)^```$", TUTORIAL.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    assert len(blocks) == 5 and sum("assert" in block for block in blocks) == 4
    exec(compile("\n".join(blocks), TUTORIAL, "exec"), {})


def test_the_figure_is_drawn(tmp_path):
    picture = tmp_path / "attention.png"
    subprocess.run([sys.executable, REPOSITORY / "dev/attention_figure.py", picture], check=True)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_links_of_the_tutorial_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", TUTORIAL.read_text(encoding="utf-8")):
        assert (TUTORIAL.parent / target).exists(), target


def test_the_prediction_of_the_attention_kernels_is_what_the_program_writes(run_command):
    """dev/attention_cost.py reads the traits: a page that is not its output describes other kernels."""
    written = run_command([sys.executable, REPOSITORY / "dev/attention_cost.py"]).stdout
    assert written == (REPOSITORY / "dev/results/attention_prediction.md").read_text()
