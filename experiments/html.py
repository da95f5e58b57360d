"""REPORT.md as one page that opens from disk: `python -m experiments.html outputs/quick` writes report.html there.

All is inside: pictures as data URIs, style and script in the page, and a policy that forbids the browser to load
anything else. Tables are sorted by a click on a column's head, claims are coloured by their state and fold.
"""

import argparse
import base64
import re
from collections import Counter
from collections.abc import Sequence
from html import escape
from pathlib import Path

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


def write(folder: Path) -> Path:
    """`folder`/report.html, of its REPORT.md and the pictures that names."""
    path = folder / "report.html"
    path.write_text(page((folder / "REPORT.md").read_text(), folder))
    return path


def page(text: str, folder: Path) -> str:
    """The page of a report in Markdown. Pictures are looked for in `folder`; one that is missing is an error."""
    parser = MarkdownIt("commonmark").enable("table")
    parser.options["html"] = False  # what a failed job printed is text, never markup
    tokens = _folded(parser.parse(text))
    headings = _named(tokens)
    for token in (child for token in tokens for child in token.children or ()):
        if token.type == "image":
            token.attrs["src"] = _data_uri(folder / str(token.attrs["src"]))
    title = headings[0].text if headings else "Report"
    body = parser.renderer.render(_framed(tokens, _tally(tokens)), parser.options, {})
    return PAGE.format(
        policy=POLICY, title=escape(title), style=STYLE.read_text(), contents=_contents(headings), body=body,
        script=SCRIPT.read_text(),
    )  # fmt: skip


class _Heading:
    """A heading with a name to jump to."""

    def __init__(self, level: int, text: str, name: str) -> None:
        self.level, self.text, self.name = level, text, name


def _named(tokens: Sequence[Token]) -> list[_Heading]:
    """Give each heading an id of its own; the headings in order."""
    found: list[_Heading] = []
    taken: Counter[str] = Counter()
    for opening, inline in zip(tokens, tokens[1:], strict=False):
        if opening.type != "heading_open":
            continue
        slug = re.sub(r"[^a-z0-9]+", "-", inline.content.lower()).strip("-") or "part"
        taken[slug] += 1
        name = slug if taken[slug] == 1 else f"{slug}-{taken[slug]}"
        opening.attrs["id"] = name
        found.append(_Heading(int(opening.tag[1]), inline.content, name))
    return found


def _contents(headings: Sequence[_Heading]) -> str:
    """Links to the parts of the report and to what is in them."""
    lines = [
        f'<a class="level{heading.level}" href="#{heading.name}">{escape(heading.text)}</a>'
        for heading in headings
        if heading.level in (2, 3)
    ]
    return "\n".join(lines)


def _folded(tokens: Sequence[Token]) -> list[Token]:
    """Each claim, an item of a list that begins with its state, as a block that opens and closes; failed ones open."""
    out: list[Token] = []
    ends: list[int] = []  # levels of the items that are claims and have not ended
    state = ""
    for place, token in enumerate(tokens):
        following = tokens[place + 1] if place + 1 < len(tokens) else None
        if token.type == "paragraph_open" and out and out[-1].type == "list_item_open" and following:
            state = _state(following)
            if state:
                ends.append(out[-1].level)
                kind = f"claim {state.replace(' ', '-')}"
                out.append(_html(f'<details class="{kind}"{" open" if state == "fails" else ""}><summary>'))
                continue
        if token.type == "paragraph_close" and state:
            out.append(_html("</summary>\n"))
            state = ""
            continue
        if token.type == "list_item_close" and ends and ends[-1] == token.level:
            ends.pop()
            out.append(_html("</details>"))
        out.append(token)
    return out


def _state(inline: Token) -> str:
    """'holds' of a text that begins with **holds**; empty where it begins with anything else."""
    kinds = [child.type for child in (inline.children or ())[:4]]
    bold = [child for child in (inline.children or ())[:4] if child.type == "text" and child.content]
    return bold[0].content if "strong_open" in kinds[:2] and bold and bold[0].content in STATES else ""


def _tally(tokens: Sequence[Token]) -> str:
    """How many claims hold, fail and could not be tried: the first thing a reader wants."""
    found = Counter(match[1] for token in tokens if (match := re.match(r'<details class="claim ([a-z-]+)"', token.content)))
    if not found:
        return ""
    counts = {name: found[name.replace(" ", "-")] for name in STATES}
    said = " ".join(
        f'<span class="{name.replace(" ", "-")}">{count} {name if count == 1 else STATES[name]}</span>'
        for name, count in counts.items()
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


def _html(content: str) -> Token:
    return Token("html_block", "", 0, content=content)


def _data_uri(path: Path) -> str:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: the report names this picture; write the report again")
    return f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}"


def main() -> None:
    parser = argparse.ArgumentParser(description="report.html of a folder with a REPORT.md, a published one too.")
    parser.add_argument("folder", type=Path, help="such as outputs/quick or results/reference/<hardware>/quick")
    print(write(parser.parse_args().folder))


if __name__ == "__main__":
    main()
