"""Runs for report.py, and its page read back: tables, texts, pictures and commands."""

import json
import math
from html.parser import HTMLParser

import pytest

import report
from fabricated_run import CONFIG, write_run

VOID = {"meta", "img", "br"}


class Page(HTMLParser):
    """tables: rows of cells, each (text, value of its data element or None). Fails if elements overlap."""

    def __init__(self, text):
        super().__init__()
        self.tables, self.images, self.commands, self.links, self.ids = [], [], [], [], set()
        self.tags, self.open, self.words = set(), [], []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.tags.add(tag)
        self.ids.add(attributes.get("id"))
        self.links += [attributes[key] for key in ("href", "src", "action", "data") if key in attributes]
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append(("", None))
        elif tag == "data":
            self.tables[-1][-1][-1] = ("", attributes["value"])
        elif tag == "img":
            self.images.append(attributes)
        elif tag == "code":
            self.commands.append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, text):
        if self.open and self.open[-1] in ("style", "title"):
            return
        self.words.append(text)
        if "code" in self.open:
            self.commands[-1] += text
        elif "td" in self.open or "th" in self.open:
            before, value = self.tables[-1][-1][-1]
            self.tables[-1][-1][-1] = (before + text, value)

    @property
    def text(self):
        return "".join(self.words)

    def row(self, first, column=None):
        """The cells beside the one row whose first cell is this; of the table with this heading."""
        tables = [table for table in self.tables if column is None or column in texts(table[0])]
        [row] = [row for table in tables for row in table if row[0][0] == first]
        return row[1:]

    def table(self, heading):
        """The texts of the table whose first cell is this."""
        [table] = [table for table in self.tables if table[0][0][0] == heading]
        return [texts(row) for row in table]


def texts(row):
    return [text for text, _ in row]


# Runs, and the page of them

SUMMARY = {
    "loss": 3.21987654, "val_loss": 3.3, "steps": 40, "tokens": 163840, "seconds": 4000.25,
    "parameters": 785728, "parameters_prior": 896, "device": "cpu", "device_description": "a processor",
    "tokens_per_second": 4409.710041465592, "flops_per_second": 22324844999.68603,
    "memory_bytes": 182784000, "skipped_updates": 2, "seconds_waiting_for_data": 0.0, "program": "0123abc",
}  # fmt: skip


@pytest.fixture(autouse=True)
def no_program(monkeypatch, tmp_path):
    monkeypatch.setenv("TRAIN_GPT_GOAT", str(tmp_path / "no program"))


@pytest.fixture
def page_of(tmp_path, capsys):
    """page_of(words...): the page that report.py writes, read back."""

    def make(*words):
        path = tmp_path / "page.html"
        assert report.main([*map(str, words), "--out", str(path)]) == 0, capsys.readouterr()
        return Page(path.read_text())

    return make


def evaluation(run, rows, train_length=40, **more):
    checkpoint = str(run / "checkpoints/step_00000040")
    return {"checkpoint": checkpoint, "train_length": train_length, "results": rows, "step": 40} | more


def write_evaluation(run, rows, **more):
    (run / "eval.json").write_text(json.dumps(evaluation(run, rows, **more)))


def losses(*pairs):
    return [{"length": n, "nll": nll, "perplexity": math.exp(nll), "tokens": 80} for n, nll in pairs]


def finished(folder, tensors=None, config=CONFIG, **summary):
    run = write_run(folder, tensors, config)
    (run / "summary.json").write_text(json.dumps(SUMMARY | summary))
    return run
