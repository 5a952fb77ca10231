"""Reads a page of report.py back: its tables, texts, pictures and commands."""

from html.parser import HTMLParser

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
