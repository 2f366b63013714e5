"""Images that the release's workflow pushes, signs and publishes, with its own commands."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any, Final

import pytest

from deploy.images.inputs.checkout import HERE
from protocol import VERSION
from tests import plain_yaml
from tests.deploy.release.workspace import Workspace
from tests.deploy.release.workspace import workspace as new_workspace

WORKFLOWS: Final = HERE / ".github" / "workflows"
JOBS: Final[dict[str, dict[str, Any]]] = plain_yaml.load((WORKFLOWS / "release.yml").read_text())["jobs"]
STEPS: Final[list[dict[str, Any]]] = [step for job in JOBS.values() for step in job["steps"]]
GITHUB: Final = {
    "GITHUB_REPOSITORY": "Team/Scaling",
    "GITHUB_SERVER_URL": "https://github.test",
    "GITHUB_REF_NAME": f"v{VERSION}",
    "REGISTRY_USER": "actor",
    "REGISTRY_PASSWORD": "secret",
}
REGISTRY: Final = "ghcr.io/team/scaling"


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A checkout after all steps that are commands, from the release's build on."""
    workspace = new_workspace(tmp_path_factory.mktemp("release") / "checkout")
    workspace.program("programs/make", "")
    workspace.program("scripts/install-packages.sh", "")
    workspace.program("programs/gh", 'printf "%s\\n" "$@" > published')
    variables = workspace.root / "variables"
    variables.touch()
    first = next(number for number, step in enumerate(STEPS) if step.get("name") == "Name the registry")
    for step in (step for step in STEPS[first:] if "run" in step):
        given = dict(line.split("=", 1) for line in variables.read_text().splitlines())
        assert step["shell"] == "bash", "in a container it is sh otherwise"
        command = ("bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"])
        done = workspace.run(*command, **GITHUB, **given, GITHUB_ENV=str(variables))
        assert (done.returncode, done.stderr) == (0, ""), step["name"]
    return workspace


def test_privileged_job_may_write_nothing() -> None:
    """It runs what packages bring; the job that signs and publishes runs nothing but commands of this file."""
    build, publish = JOBS["build"], JOBS["publish"]
    assert build["permissions"] == {"contents": "read"}
    assert "--privileged" in build["container"]["options"]
    writers = {name for name, job in JOBS.items() if "write" in job["permissions"].values()}
    assert writers == {"images", "publish"}
    assert not any("container" in JOBS[name] for name in writers)
    assert not any("checkout" in step.get("uses", "") for step in publish["steps"])
    assert not any("scripts/" in step.get("run", "") or ".venv" in step.get("run", "") for step in publish["steps"])


@pytest.mark.parametrize("workflow", sorted(WORKFLOWS.glob("*.yml")), ids=lambda path: path.stem)
def test_actions_are_named_by_commits(workflow: Path) -> None:
    """A tag can be moved to other code."""
    named = re.findall(r"uses: *(\S+)(.*)", workflow.read_text())
    assert named
    for action, comment in named:
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", action), action
        assert re.fullmatch(r" # v\d+\.\d+\.\d+", comment), action


def test_workflow_pushes_with_login(published: Workspace) -> None:
    assert published.asked[-1] == f"images push {REGISTRY} --tag v{VERSION} --output build/release/images"
    config = (published.root / "home" / ".docker" / "config.json").read_text()
    assert base64.b64decode(json.loads(config)["auths"]["ghcr.io"]["auth"]) == b"actor:secret"


def test_published_chart_uses_pushed_images(published: Workspace) -> None:
    summary = json.loads((published.root / "build" / "release" / "release.json").read_text())
    assert (summary["registry"], list(summary["images"])) == (REGISTRY, ["autoscaler-agent"])


def test_all_files_and_images_are_signed(published: Workspace) -> None:
    release = published.root / "build" / "release"
    words = (published.root / "published").read_text().splitlines()
    start = f"release create v{VERSION} --verify-tag --notes-file build/release/CHANGES.md".split()
    files = [published.root / word for word in words[len(start) :]]
    assert words[: len(start)] == start
    assert sorted(files) == sorted(path for path in release.iterdir() if path.is_file())
    digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    images = json.loads((release / "release.json").read_text())["images"]
    pushed = {f"{REGISTRY}/{name}": digest.removeprefix("sha256:") for name, digest in images.items()}
    (signing,) = (step["with"] for step in STEPS if step.get("uses", "").startswith("actions/attest-build-provenance@"))
    lines = (published.root / signing["subject-checksums"]).read_text().splitlines()
    assert {name: digest for digest, _, name in (line.partition("  ") for line in lines)} == digests | pushed
