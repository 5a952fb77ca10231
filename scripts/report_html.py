"""HTML of one file that needs no other and is readable without scripts: elements, tables, figures.

All text passes through ElementTree, which escapes it.
"""

import base64
import xml.etree.ElementTree as ElementTree

from console import one_line
from figure_file import DPI, picture_of, plt

STYLE = """
:root { color-scheme: light dark; --text: #1b1f24; --faint: #59636e; --line: #d1d9e0; --page: #ffffff;
  --band: #f3f5f7; --warning: #9a3412; --link: #0b57d0; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e6e8eb; --faint: #9da7b1; --line: #3a424c; --page: #14171b; --band: #20252b;
    --warning: #fdba74; --link: #8ab4f8; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 76rem; background: var(--page); color: var(--text);
  font: 15px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; margin: 0.5rem 0; }
h2 { font-size: 1.2rem; margin: 2.2rem 0 0.6rem; padding-bottom: 0.2rem;
  border-bottom: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.4rem 0 0.4rem; }
p, ul { margin: 0.4rem 0; max-width: 60rem; }
a { color: var(--link); }
nav a { display: inline-block; margin-right: 1rem; }
.faint { color: var(--faint); font-size: 0.9rem; }
.warning { color: var(--warning); }
.scroll { overflow-x: auto; margin: 0.6rem 0; }
table { border-collapse: separate; border-spacing: 0; font-variant-numeric: tabular-nums; }
th, td { padding: 0.25rem 0.8rem; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line);
  min-width: 4rem; max-width: 22rem; overflow-wrap: break-word; line-height: 22px; }
table:not(.numbers) td { min-width: 10rem; }
td ul { margin: 0; padding-left: 1.1rem; min-width: 14rem; }
table.numbers :is(td, thead th:not(:first-child)) { text-align: right; white-space: nowrap; }
thead th { border-bottom: 2px solid var(--line); }
tbody th { font-weight: 500; color: var(--faint); position: sticky; left: 0; background: var(--page);
  min-width: 6rem; max-width: 14rem; }
tr.section th { color: var(--text); font-weight: 600; background: var(--band); position: static; }
figure { margin: 0.8rem 0; }
figure img { display: block; max-width: max(100%, 34rem); height: auto; background: #ffffff;
  border: 1px solid var(--line); border-radius: 6px; }
.wide img { max-width: max(100%, 44rem); }
figcaption { color: var(--faint); font-size: 0.9rem; margin-top: 0.3rem; max-width: 60rem; }
pre { margin: 0.2rem 0 0.8rem; padding: 0.5rem 0.7rem; overflow-x: auto; background: var(--band);
  border-radius: 6px; font: 13px/1.45 ui-monospace, monospace; overflow-wrap: normal; }
"""
PICTURES = {"svg": "image/svg+xml", "png": "image/png", "webp": "image/webp"}
MOST_WEBP_PIXELS = 16_383  # of height or width


def printable(text):
    """Text without what HTML cannot hold; a command keeps its line ends."""
    return "\n".join(one_line(line) for line in str(text).split("\n"))


def element(tag, *children, **attributes):
    """An element; `css` is its class."""
    made = ElementTree.Element(tag)
    for key, value in attributes.items():
        if value != "":
            made.set({"css": "class"}.get(key, key), one_line(value))
    for child in children:
        if isinstance(child, ElementTree.Element):
            made.append(child)
        elif len(made):
            made[-1].tail = (made[-1].tail or "") + printable(child)
        else:
            made.text = (made.text or "") + printable(child)
    return made


def number(value, shown):
    """A number as the page shows it, with the file's own value beside it."""
    return element("data", shown, value=repr(value))


def table(head, rows, css=""):
    """A table in a container that scrolls. Cells are text or elements. A row of one cell is the heading of
    those below."""
    body = element("tbody")
    for first, *cells in rows:
        if cells:
            data = (element("td", each) for each in cells)
            body.append(element("tr", element("th", first, scope="row"), *data))
        else:
            heading = element("th", first, scope="rowgroup", colspan=len(head))
            body.append(element("tr", heading, css="section"))
    columns = (element("th", name, scope="col") for name in head)
    whole = element("table", element("thead", element("tr", *columns)), body, css=css)
    return element("div", whole, css="scroll")


def bitmap_kind(figure):
    """WebP, which takes a quarter of the bytes of PNG where colours flow, up to the size that it can have."""
    return "webp" if DPI * max(figure.get_size_inches()) <= MOST_WEBP_PIXELS else "png"


def picture(figure, alternative, caption, css="", kinds=("svg", "png")):
    """The figure as data in the page: of the kinds, whichever is smaller."""
    try:
        drawn = [(kind, picture_of(figure, kind)) for kind in kinds]
    finally:
        plt.close(figure)
    kind, contents = min(drawn, key=lambda each: len(each[1]))
    source = f"data:{PICTURES[kind]};base64,{base64.b64encode(contents).decode()}"
    width = round(96 * figure.get_figwidth())  # CSS has 96 pixels an inch
    image = element("img", src=source, alt=alternative, width=width)
    caption = element("figcaption", caption)
    return element("figure", element("div", image, css=f"scroll {css}".strip()), caption)


def document(title, body):
    """The bytes of the page."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", title),
    )
    ElementTree.SubElement(head, "style").text = STYLE
    whole = element("html", head, body, lang="en")
    return b"<!DOCTYPE html>\n" + ElementTree.tostring(whole, encoding="utf-8", method="html") + b"\n"
