"""hf_peer.py as a process: what test_hf_peer.py and test_goat_attention.py ask of transformers and torch."""

import json
import os
import queue
import subprocess
import threading
from pathlib import Path

import pytest

from conftest import REPOSITORY

PEER = Path(os.environ.get("GOAT_HF_PYTHON", REPOSITORY / ".venv-hf" / "bin" / "python"))
needs_peer = pytest.mark.skipif(not PEER.exists(), reason=f"no {PEER}: scripts/setup.sh hf makes it")


class Peer:
    """hf_peer.py: ask(what, ...) returns its answer."""

    def __init__(self, folder):
        self.log = open(folder / "peer.log", "w+")  # noqa: SIM115  open as long as the process
        self.process = subprocess.Popen(
            [PEER, REPOSITORY / "test" / "hf_peer.py"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            env=os.environ | {"HF_HOME": str(folder), "OMP_NUM_THREADS": "1"},
        )
        self.answers = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            self.answers.put(line)
        self.answers.put("")

    def ask(self, what, **arguments):
        request = {"do": what} | {k: str(v) if isinstance(v, Path) else v for k, v in arguments.items()}
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            answer = self.answers.get(timeout=300)
        except BrokenPipeError:
            answer = ""
        if not answer:
            self.answers.put("")
            self.log.seek(0)
            pytest.fail(self.log.read()[-4000:])
        return json.loads(answer)


@pytest.fixture(scope="module")
def ask(tmp_path_factory):
    peer = Peer(tmp_path_factory.mktemp("peer"))
    yield peer.ask
    peer.process.kill()
    peer.process.wait()
