"""The earlier release is taken from the git history, and a checkout without history fails."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests import plain_yaml
from tests.deploy.manifests import ROOT
from tests.kubernetes.failing.released_build import PACKAGES, unpack_newest_release

AUTHOR = ("-c", "user.name=A", "-c", "user.email=a@example.test")
NIGHTLY = ROOT / ".github" / "workflows" / "kubernetes.yml"


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", "-C", str(folder), *AUTHOR, *arguments], check=True, capture_output=True)


def commit(project: Path, changelog: str, code: str) -> None:
    (project / "CHANGELOG.md").write_text(changelog)
    for package in PACKAGES:
        (project / package).mkdir(exist_ok=True)
        (project / package / "code.py").write_text(code)
    git(project, "add", "--all")
    git(project, "commit", "--message=x")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository with a release, and work after it."""
    folder = tmp_path / "project"
    folder.mkdir()
    git(folder, "init", "--quiet")
    commit(folder, "## [Unreleased]\n", "before")
    commit(folder, "## [Unreleased]\n## [0.2.0]\n", "released")
    commit(folder, "## [Unreleased]\nA fix.\n## [0.2.0]\n", "after")
    return folder


def shallow(project: Path, tmp_path: Path) -> Path:
    """A clone as CI creates it by default."""
    clone = tmp_path / "clone"
    git(project, "clone", "--quiet", "--depth=1", project.as_uri(), str(clone))
    return clone


def test_released_packages_come_from_git_history(project: Path, tmp_path: Path) -> None:
    folder = tmp_path / "older"
    folder.mkdir()
    unpack_newest_release(project, folder)
    assert {path.name: (path / "code.py").read_text() for path in folder.iterdir()} == dict.fromkeys(
        PACKAGES, "released"
    )


def test_missing_history_fails_with_remedy(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AUTOSCALE_WHERE_POSSIBLE", raising=False)
    with pytest.raises(pytest.fail.Exception, match=r"\[0\.2\.0\]: git fetch --unshallow"):
        unpack_newest_release(shallow(project, tmp_path), tmp_path)


def test_older_release_is_skipped_only_on_request(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOSCALE_WHERE_POSSIBLE", "1")
    with pytest.raises(pytest.skip.Exception, match="no history"):
        unpack_newest_release(shallow(project, tmp_path), tmp_path)


def test_nightly_checkout_has_git_history() -> None:
    steps = plain_yaml.load(NIGHTLY.read_text())["jobs"]["kubernetes"]["steps"]
    (checkout,) = (step for step in steps if step.get("uses", "").startswith("actions/checkout@"))
    assert checkout.get("with") == {"fetch-depth": 0}
