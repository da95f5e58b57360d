"""A report made public: `python -m experiments.publish outputs/quick` copies it below results/reference/.

Only numbers that can be traced are published: of a known commit, without changes beside it, of one machine.
"""

import argparse
import re
import shutil
import sys
from pathlib import Path

from experiments import report
from experiments.record import ROOT
from experiments.results import Frame, newest_code, read

REFERENCE = ROOT / "results" / "reference"
PATH = re.compile(r"(?<![\w.:/~)\]])/(?:[\w.+@-]+/)+([\w.+@-]*)")  # absolute, of two parts or more; not those of a URL


class Refused(RuntimeError):
    """These runs are no reference."""


def publish(folder: Path, *, allow_dirty: bool = False, reference: Path = REFERENCE) -> Path:
    """Write the report of `folder` anew and copy it, with the rows it shows, to `reference`/<hardware>/<profile>."""
    report.write(folder)
    rows = newest_code(read(folder))
    dirty = _check(rows, allow_dirty)
    target = reference / slug(rows["hardware"].iloc[0]) / _name(folder, rows)
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for part in ("tables", "figures"):
        shutil.copytree(folder / part, target / part)
    text = (folder / "REPORT.md").read_text()
    if dirty:
        title, rest = text.split("\n", 1)
        warning = f"> **Published with --allow-dirty: {dirty} of {len(rows)} rows ran code that no commit holds.**"
        text = f"{title}\n\n{warning}\n{rest}"
    (target / "REPORT.md").write_text(text)
    rows.to_csv(target / "runs.csv", index=False)
    for path in (*target.rglob("*.md"), *target.rglob("*.csv")):
        path.write_text(without_paths(path.read_text()))
    return target


def without_paths(text: str) -> str:
    """Absolute paths shortened to their last part: whose disk it was is nobody's business."""
    return PATH.sub(lambda found: f"…/{found[1]}", text)


def slug(hardware: str) -> str:
    """'2x AMD EPYC' -> '2x-amd-epyc'."""
    return re.sub(r"[^a-z0-9]+", "-", hardware.lower()).strip("-")


def _check(rows: Frame, allow_dirty: bool) -> int:
    """The number of rows with uncommitted changes, if these rows may be published."""
    machines = sorted(set(rows["hardware"]))
    if len(machines) > 1:
        raise Refused(f"expected rows of one machine, got {machines}; keep a folder for each")
    if (rows["commit"] == "unknown").any():
        raise Refused("expected rows of a known commit, got 'unknown'; commit the code in git and run the sweep again")
    dirty = int(rows["uncommitted_changes"].eq(True).sum())
    if dirty and not allow_dirty:
        raise Refused(
            f"expected rows of committed code, got {dirty} of {len(rows)} with uncommitted changes; commit, delete "
            "the jobs folder and run the sweep again, or pass --allow-dirty, which the report will say"
        )
    return dirty


def _name(folder: Path, rows: Frame) -> str:
    """The profile's name; the folder's where the runs are of several profiles, or made by hand."""
    profiles = set(rows["name_profile"]) - {"adhoc"}
    return profiles.pop() if len(profiles) == 1 else folder.resolve().name


def main() -> None:
    parser = argparse.ArgumentParser(description="Copy the report of a folder of runs to results/reference/.")
    parser.add_argument("folder", type=Path, help="what `output` was, such as outputs/quick")
    parser.add_argument("--allow-dirty", action="store_true", help="also rows of uncommitted code; the report says so")
    arguments = parser.parse_args()
    try:
        print(publish(arguments.folder, allow_dirty=arguments.allow_dirty))
    except (Refused, report.NothingFinished) as reason:
        sys.exit(f"not published: {reason}")


if __name__ == "__main__":
    main()
