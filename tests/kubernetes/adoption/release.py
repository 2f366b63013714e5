"""A release of the chart in a cluster of a test, by the Helm that ``make manifests`` uses."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from deploy.images.building.image_build import build, native_platform
from deploy.images.building.layers import LayerMaker
from deploy.images.catalogue import IMAGES
from deploy.images.inputs.checkout import Checkout
from deploy.local.kubernetes.machine.installation import build_images, load_image
from deploy.local.kubernetes.plan.cluster_plan import CONTAINERD_SOCKET, PROGRAMS
from deploy.local.kubernetes.plan.installation_plan import FOR_VMS, REFERENCE
from protocol.kubernetes.api import ApiError
from scripts.manifests.__main__ import ROOT, helm
from scripts.manifests.rendering import CHART
from tests.kubernetes.real_kubernetes import VERSION, RealKubernetes
from vm_image.recipe import Origin

NAMESPACE: Final = "autoscale-system"
NEXT: Final = "next"
"""The tag of the version that is upgraded to: the same programs under another name."""

_PATIENCE: Final = 400.0
_LOOKS: Final = (
    ("get", "pods", "--all-namespaces", "--output=wide"),
    ("get", "neonvm", "--all-namespaces", "--output=yaml"),
    ("get", "events", "--all-namespaces", "--sort-by=.lastTimestamp"),
    ("logs", "--selector=vm.neon.tech/name", "--all-containers", "--prefix", "--tail=30"),
    ("logs", "--namespace=autoscale-system", "--selector=app.kubernetes.io/name=neonvm-controller", "--tail=30"),
    (
        *("logs", "--namespace=autoscale-system", "--selector=app.kubernetes.io/name=autoscaling-scheduler"),
        *("--all-containers", "--prefix", "--tail=30"),
    ),
    ("logs", "--namespace=autoscale-system", "autoscaling-answers"),
    ("logs", "--namespace=autoscale-system", "--selector=app.kubernetes.io/name=autoscaling-injector", "--tail=30"),
    ("logs", "--namespace=autoscale-system", "--selector=app.kubernetes.io/name=autoscaling-agent", "--tail=30"),
    ("logs", "--namespace=autoscale-system", "--selector=app.kubernetes.io/name=autoscaling-dashboard", "--tail=30"),
)


@dataclass(frozen=True, slots=True)
class Release:
    """The release ``autoscale`` in its namespace."""

    cluster: RealKubernetes

    def helm(self, action: str, *arguments: str) -> str:
        """Run Helm and return its output. Raises ``AssertionError`` with its error output."""
        done = self.try_helm(action, *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def try_helm(self, action: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs Helm, which may fail."""
        chart = [] if arguments and arguments[0].startswith("oci:") else [str(ROOT / CHART)]
        target = ["autoscale", *chart] if action in {"install", "upgrade", "template"} else ["autoscale"]
        return subprocess.run(
            [str(helm()), action, *target, f"--namespace={NAMESPACE}", *arguments],
            env={**os.environ, "KUBECONFIG": str(self.cluster.kubeconfig)},
            capture_output=True,
            text=True,
            check=False,
            timeout=_PATIENCE,
        )

    def objects(self, kind: str) -> list[dict[str, Any]]:
        """The objects of a kind that are the release's, in any namespace."""
        found = self.cluster.get(kind, "--all-namespaces", "--selector=app.kubernetes.io/instance=autoscale")["items"]
        return list(found)

    def tags(self) -> set[str]:
        """The tags of our images that the release's pods run."""
        pods = (each for each in self.objects("pods") if "deletionTimestamp" not in each["metadata"])
        images = (container["image"] for pod in pods for container in pod["spec"]["containers"])
        return {image.rpartition(":")[2] for image in images if image.startswith("localhost:5001/")}


def bring_images(cluster: RealKubernetes, folder: Path) -> None:
    """Builds the images and puts them on every node, under a second tag too."""
    asyncio.run(_bring_images(cluster, folder))
    for pid in nodes_of(cluster):
        listed = subprocess.run(
            [*ctr(pid), "list", "--quiet"], capture_output=True, text=True, check=True
        ).stdout.split()
        for image in (each for each in listed if each.startswith("localhost:5001/") and each.endswith(":dev")):
            subprocess.run(
                [*ctr(pid), "tag", "--force", image, f"{image.removesuffix('dev')}{NEXT}"],
                check=True,
                capture_output=True,
            )


async def _bring_images(cluster: RealKubernetes, folder: Path) -> None:
    archives = [Path(each) for each in (await build_images(VERSION, folder, print)).archives]
    for archive in (*archives, *_more_images(folder)):
        await load_image(cluster.folder / "kubernetes" / "nodes", archive)


def _more_images(folder: Path) -> Iterator[Path]:
    """Images of what the chart installs and ``autoscale local`` does not."""
    platform = native_platform()
    maker = LayerMaker(Checkout(), platform, platform, Origin(), print)
    for name in {"autoscale-injector", "autoscale-dashboard", "autoscale-groups"} - set(FOR_VMS.images):
        yield build(IMAGES[name], maker, REFERENCE.format(name=name), folder).path


def nodes_of(cluster: RealKubernetes) -> list[str]:
    """The nodes' first processes."""
    return [path.read_text().strip() for path in sorted((cluster.folder / "kubernetes" / "nodes").glob("*/pid"))]


def ctr(pid: str) -> Sequence[str]:
    """The command about images on the node of that process."""
    program = f"{PROGRAMS}/containerd/ctr"
    return (
        *("nsenter", f"--target={pid}", "--mount", "--net", "--"),
        *(program, "--address", CONTAINERD_SOCKET, "--namespace", "k8s.io", "images"),
    )


@contextmanager
def telling(cluster: RealKubernetes) -> Iterator[None]:
    """Print diagnostics if the block fails, because the cluster is removed afterwards."""
    try:
        yield
    except BaseException:
        for arguments in _LOOKS:
            done = cluster.try_kubectl(*arguments)
            print(f"$ kubectl {' '.join(arguments)}\n{done.stdout}{done.stderr}")
        print(_explained(cluster))
        raise


def _explained(cluster: RealKubernetes) -> str:
    """Explanations of the node agents for their VMs' sizes."""
    selector = "--selector=app.kubernetes.io/name=autoscaling-agent"
    pods = cluster.try_kubectl("get", "pods", f"--namespace={NAMESPACE}", selector, "--output=name").stdout.split()
    names = (f"{NAMESPACE}/{each.removeprefix('pod/')}" for each in pods)
    return "\n".join(_account(cluster, each) for each in names)


def _account(cluster: RealKubernetes, pod: str) -> str:
    try:
        return str(cluster.explained(pod, 9101, "/explain/default/postgres14-disk-test"))
    except ApiError as error:
        return str(error)


def settings_of(cluster: RealKubernetes) -> str:
    """The scheduler's settings, as they are in the cluster."""
    found = cluster.get("configmap", "autoscaling-scheduler-config", f"--namespace={NAMESPACE}")
    return str(found["data"]["config.yaml"])


def edit_settings(cluster: RealKubernetes, before: str, after: str) -> str:
    """Changes the scheduler's settings as ``kubectl edit`` does; the settings as they are now."""
    text = settings_of(cluster)
    assert before in text
    changed = text.replace(before, after)
    patch = json.dumps({"data": {"config.yaml": changed}})
    target = ("configmap/autoscaling-scheduler-config", f"--namespace={NAMESPACE}")
    cluster.kubectl("patch", *target, "--type=merge", f"--patch={patch}")
    return changed
