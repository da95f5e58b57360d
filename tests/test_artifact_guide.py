"""docs/ARTIFACT.md knows every artifact; the container is built as its own words say."""

import re

import pytest
from conftest import ROOT

from experiments.report import ARTIFACTS

GUIDE = (ROOT / "docs" / "ARTIFACT.md").read_text()
DOCKERFILE = (ROOT / "Dockerfile").read_text()


@pytest.mark.parametrize("artifact", ARTIFACTS, ids=lambda artifact: artifact.name)
def test_every_artifact_has_its_command_and_a_grid_that_exists(artifact):
    lines = [line for line in GUIDE.splitlines() if f"`make artifact-{artifact.name}" in line and line.startswith("|")]
    assert len(lines) == 1
    claim, command, minutes, memory, hardware, tolerance = (cell.strip() for cell in lines[0].strip("|").split("|"))
    assert all((claim, command, minutes, memory, hardware, tolerance))
    assert (ROOT / "conf" / "experiment" / f"{artifact.experiment}.yaml").exists()


def instructions():
    """(word, rest) of each instruction of the Dockerfile, lines that go on joined."""
    joined = re.sub(r"\\\n\s*", " ", "\n".join(x for x in DOCKERFILE.splitlines() if not x.startswith("#")))
    return [tuple(line.split(maxsplit=1)) for line in joined.splitlines() if line.strip()]


def test_the_image_is_pinned_and_not_run_as_root():
    words = dict(reversed(instructions()))  # the first of each; of USER there is one
    assert re.fullmatch(r"python:\d+\.\d+\.\d+-slim-\w+", words["FROM"])
    assert [rest for word, rest in instructions() if word == "USER"] == ["sidco"]
    assert words["CMD"] == '["make", "help"]'


def test_the_image_installs_the_pinned_versions():
    (install,) = [rest for word, rest in instructions() if word == "RUN" and "pip install" in rest]
    assert "-c constraints.txt -e '.[app,dev]'" in install
    assert "--no-cache-dir" in install
