"""`scripts/release.sh`: the files that it builds, their names, and the files that it does not touch."""

from __future__ import annotations

from pathlib import Path

import pytest

from protocol import VERSION
from tests.deploy.release.workspace import Workspace
from tests.deploy.release.workspace import workspace as new_workspace


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return new_workspace(tmp_path / "checkout")


def test_image_tags_and_names_match_chart(workspace: Workspace) -> None:
    both = ("--platform", "linux/amd64", "--platform", "linux/arm64")
    done = workspace.run("scripts/release.sh", *both, "--registry", "r.test/team")
    assert (done.returncode, done.stderr) == (0, "")
    (asked,) = workspace.asked
    assert asked.startswith(f"images build {' '.join(both)} --registry r.test/team --tag v{VERSION} --output /")
    assert '"registry": "r.test/team"' in (workspace.root / "build" / "release" / "release.json").read_text()


def test_foreign_output_folder_is_refused_early(workspace: Workspace) -> None:
    (workspace.root / "home" / "thesis.tex").write_text("mine")
    done = workspace.run("scripts/release.sh", "--output", "home")
    assert (done.returncode, workspace.asked) == (2, [])
    assert done.stderr.startswith("release: home contains other files than a release (thesis.tex)")
    assert (workspace.root / "home" / "thesis.tex").read_text() == "mine"
