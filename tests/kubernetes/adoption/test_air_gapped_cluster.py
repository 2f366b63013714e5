"""A release as ``scripts/release.sh`` makes it, carried to an air-gapped cluster and installed there.

It comes after the other stories of the package: from a registry, kubelets get the very images that the others find on
the nodes under other names, and what a kubelet has pulled under one name it asks a registry for under every other.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pytest

from deploy.images.catalogue import IMAGES
from deploy.neonvm.network.sockets import free_port
from protocol import VERSION
from scripts.manifests.__main__ import ROOT, helm
from tests.deploy.images.debian_registry import registry_program, serving
from tests.kubernetes.adoption.release import NAMESPACE, Release, ctr, nodes_of, telling
from tests.kubernetes.adoption.steps import answers
from tests.kubernetes.real_kubernetes import eventually

pytestmark = pytest.mark.kubernetes

TEAM: Final = "autoscale"
NAME: Final = f"autoscale-{VERSION}-airgapped"
UNPROVEN: Final = {"provenance.intoto.json", "push_images.py"}
"""What only the sums have: the statement itself, and a file of the commit that it names."""


@pytest.fixture(scope="module")
def carried(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that comes out of the one archive of a release."""
    folder = tmp_path_factory.mktemp("release")
    command = [str(ROOT / "scripts/release.sh"), "--output", str(folder / "made")]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    subprocess.run(["tar", "--extract", f"--file={folder / 'made' / NAME}.tar", f"--directory={folder}"], check=True)
    return folder / NAME


def digests(folder: Path) -> dict[str, str]:
    found: dict[str, str] = json.loads((folder / "release.json").read_text())["images"]
    return found


def test_archive_has_images_boms_and_provenance(carried: Path) -> None:
    subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=carried, check=True)
    assert digests(carried).keys() == IMAGES.keys()
    inside = {path.name.rpartition("-")[0]: json.loads(path.read_text()) for path in carried.glob("*.cdx.json")}
    assert inside.keys() == IMAGES.keys()
    assert [name for name, found in inside.items() if len(found["components"]) < 10] == []
    statement = json.loads((carried / "provenance.intoto.json").read_text())
    said = {each["name"]: each["digest"]["sha256"] for each in statement["subject"]}
    sums = [line.split(maxsplit=1) for line in (carried / "SHA256SUMS").read_text().splitlines()]
    assert said == {name: digest for digest, name in sums if name not in UNPROVEN}
    chart = (carried / f"autoscale-{VERSION}.tgz").read_bytes()
    assert said[f"autoscale-{VERSION}.tgz"] == hashlib.sha256(chart).hexdigest()


@contextmanager
def registries(release: Release, folder: Path) -> Iterator[str]:
    """The address of a registry on this machine; each node has it at ``localhost`` and the same port."""
    program, port = registry_program(folder), free_port()
    with ExitStack() as running:
        for pid in nodes_of(release.cluster):
            running.enter_context(serving(folder, program, port, ("nsenter", f"--target={pid}", "--net", "--")))
        yield running.enter_context(serving(folder, program, port))


def test_air_gapped_cluster_installs_from_archive(release: Release, carried: Path, tmp_path: Path) -> None:
    """The chart is pushed too; kube-scheduler's image is the cluster's own."""
    with registries(release, tmp_path) as registry, telling(release.cluster):
        printed(carried / "push_images.py", f"{registry}/{TEAM}", f"v{VERSION}")
        place = f"oci://{registry}/charts"
        printed(helm(), "push", carried / f"autoscale-{VERSION}.tgz", place, "--plain-http")
        internal = f"localhost:{registry.rpartition(':')[2]}/{TEAM}"
        have_kube_scheduler(release, internal)
        values = ("--create-namespace", f"--set=global.imageRegistry={internal}", "--wait", "--timeout=6m")
        release.helm("install", f"{place}/autoscale", f"--version={VERSION}", "--plain-http", *values)
        answers(release)
        assert images(release) - {"kube-scheduler"} <= {f"{name}@{each}" for name, each in digests(carried).items()}
        release.helm("uninstall", "--wait", "--timeout=2m")
        eventually(lambda: not release.objects("pods"), "no pod of it is left")


def printed(*command: str | Path) -> str:
    """Run the command and return its output. Raises ``AssertionError`` with its error output."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def have_kube_scheduler(release: Release, registry: str) -> None:
    """Gives the nodes' own image of it the name that the chart asks for."""
    for pid in nodes_of(release.cluster):
        images = ctr(pid)
        listed = printed(*images, "list", "--quiet").split()
        own = [each for each in listed if each.startswith("registry.k8s.io/kube-scheduler:")]
        assert own, listed
        printed(*images, "tag", "--force", own[0], own[0].replace("registry.k8s.io", registry))


def images(release: Release) -> set[str]:
    """Images of the release's pods, by name and digest."""
    found = release.cluster.get("pods", f"--namespace={NAMESPACE}")["items"]
    references = (each["image"] for pod in found for each in pod["spec"]["containers"])
    names = (reference.rpartition("/")[2] for reference in references)
    return {f"{name.partition(':')[0]}@{name.partition('@')[2]}".removesuffix("@") for name in names}
