"""REPORT.md as one page that opens from disk: `python -m experiments.html results/reference/2x-amd-epyc/quick`.

All is inside: pictures as data URIs, style and script in the page, and a policy that forbids the browser to load
anything else. Tables are sorted by a click on a column's head; claims are coloured by their state and fold.
"""

import argparse
import base64
import re
from collections import Counter
from collections.abc import Sequence
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from markdown_it import MarkdownIt
from markdown_it.token import Token

from experiments.record import ROOT

STATES = {"holds": "hold", "fails": "fail", "no data": "without data"}  # of a claim, and of several
STYLE, SCRIPT = (ROOT / "experiments" / f"report.{kind}" for kind in ("css", "js"))
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<nav><details open><summary>Contents</summary>
{contents}
</details></nav>
<main>
{body}</main>
<script>
{script}</script>
</body>
</html>
"""


class Heading(NamedTuple):
    """A place to jump to."""

    level: int
    text: str
    name: str


def page_of(report: Path) -> Path:
    """REPORT.md -> report.html beside it."""
    return report.with_name(f"{report.stem.lower()}.html")


def write(report: Path) -> Path:
    """The page of a report in Markdown, beside it, with the pictures that it names."""
    path = page_of(report)
    path.write_text(page(report.read_text(), report.parent), encoding="utf-8")
    return path


def page(text: str, folder: Path) -> str:
    """The page as text. Pictures are looked for in `folder`; one that is missing is an error."""
    parser = MarkdownIt("commonmark", {"html": False}).enable("table")  # what a failed job printed is no markup
    tokens = parser.parse(text)
    headings = _named(tokens)
    for image in (child for token in tokens for child in token.children or () if child.type == "image"):
        image.attrs["src"] = _data_uri(folder / str(image.attrs["src"]))
    states = [state for token in tokens if (state := _state(token))]
    body = parser.renderer.render(_framed(_folded(tokens), _tally(states)), parser.options, {})
    return PAGE.format(
        policy=POLICY, title=escape(headings[0].text if headings else "Report"), style=STYLE.read_text(),
        contents=_contents(headings), body=body, script=SCRIPT.read_text(),
    )  # fmt: skip


def _named(tokens: Sequence[Token]) -> list[Heading]:
    """Give each heading an id of its own; the headings in order."""
    found: list[Heading] = []
    taken: Counter[str] = Counter()
    for opening, inline in pairwise(tokens):
        if opening.type != "heading_open":
            continue
        slug = re.sub(r"[^a-z0-9]+", "-", inline.content.lower()).strip("-") or "part"
        taken[slug] += 1
        name = slug if taken[slug] == 1 else f"{slug}-{taken[slug]}"
        opening.attrs["id"] = name
        found.append(Heading(int(opening.tag[1]), inline.content, name))
    return found


def _contents(headings: Sequence[Heading]) -> str:
    """Links to the parts of the report and to what is in them."""
    return "\n".join(
        f'<a class="level{heading.level}" href="#{heading.name}">{escape(heading.text)}</a>'
        for heading in headings
        if heading.level in (2, 3)
    )


def _state(token: Token) -> str:
    """Of a claim, which begins with its state in bold, as in **holds**; of anything else it is empty."""
    children = [child for child in token.children or () if child.type != "text" or child.content]
    bold = len(children) > 1 and children[0].type == "strong_open"
    return children[1].content if bold and children[1].content in STATES else ""


def _folded(tokens: Sequence[Token]) -> list[Token]:
    """Each claim as a block that opens and closes, with the places it was tried in inside it."""
    out: list[Token] = []
    open_at: list[int] = []  # levels of the items that are claims and have not ended
    for place, token in enumerate(tokens):
        item = out[-1] if out and out[-1].type == "list_item_open" else None
        if token.type == "paragraph_open" and item and (state := _state(tokens[place + 1])):
            open_at.append(item.level)
            out.append(_html(f'<details class="claim {_slug(state)}"><summary>'))
        elif token.type == "paragraph_close" and _state(tokens[place - 1]) and open_at:
            out.append(_html("</summary>\n"))
        else:
            if token.type == "list_item_close" and open_at and open_at[-1] == token.level:
                open_at.pop()
                out.append(_html("</details>"))
            if item and token.type == "paragraph_open" and tokens[place + 1].content.startswith("NO: "):
                item.attrs["class"] = "no"
            out.append(token)
    return out


def _tally(states: Sequence[str]) -> str:
    """How many claims hold, fail and could not be tried: the first thing a reader wants."""
    if not states:
        return ""
    counts = Counter(states)
    said = " ".join(
        f'<span class="{_slug(state)}">{counts[state]} {state if counts[state] == 1 else several}</span>'
        for state, several in STATES.items()
    )
    return f'<p class="tally">Claims: {said} <button type="button" id="fold">open all</button></p>\n'


def _framed(tokens: Sequence[Token], tally: str) -> list[Token]:
    """Tables in a frame that scrolls by itself on a narrow screen; the tally below the title."""
    out: list[Token] = []
    for token in tokens:
        if token.type == "table_open":
            out.append(_html('<div class="table">\n'))
        out.append(token)
        if token.type == "table_close":
            out.append(_html("</div>\n"))
        if token.type == "heading_close" and token.tag == "h1":
            out.append(_html(tally))
    return out


def _slug(state: str) -> str:
    return state.replace(" ", "-")


def _html(content: str) -> Token:
    return Token("html_block", "", 0, content=content)


def _data_uri(path: Path) -> str:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: the report names this picture; write the report again")
    return f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}"


def main() -> None:
    parser = argparse.ArgumentParser(description="report.html of a folder with a REPORT.md, a published one too.")
    parser.add_argument("folder", type=Path, help="such as outputs/quick or results/reference/<hardware>/quick")
    print(write(parser.parse_args().folder / "REPORT.md"))


if __name__ == "__main__":
    main()
