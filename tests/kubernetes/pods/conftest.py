"""Our chart with ``pods.enabled`` and CloudNativePG on one cluster, which the modules here share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.kubernetes.adoption.release import Release, bring_images, telling
from tests.kubernetes.pods.pod_stage import PodStage, with_operator
from tests.kubernetes.pods.pod_watch import PodWatch, watching
from tests.kubernetes.real_kubernetes import RealKubernetes, running

VALUES: Final = {
    "pods.enabled": "true",
    "groups.enabled": "true",
    # One of each is enough here, and the machine has two cores.
    **dict.fromkeys((f"{each}.replicas" for each in ("scheduler", "injector", "groups", "neonvm.controller")), "1"),
    # VMs let most peaks pass before they move.
    **dict.fromkeys((f"scheduler.settings.migration.settle{each}Seconds" for each in ("", "Denied")), "3"),
}


@pytest.fixture(scope="package")
def stage(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PodStage]:
    """The installed cluster; a test leaves no pods."""
    with running(RealKubernetes("pods", home), "--nodes", "2") as cluster:
        folder = tmp_path_factory.mktemp("images")
        cluster.kubectl("delete", "crds", "--all")
        bring_images(cluster, folder)
        with telling(cluster), with_operator(cluster, folder):
            release = Release(cluster)
            settings = ",".join(f"{name}={value}" for name, value in VALUES.items())
            release.helm("install", "--wait", "--timeout=6m", "--create-namespace", f"--set={settings}")
            yield PodStage(release)


@pytest.fixture
def watch(stage: PodStage) -> Iterator[PodWatch]:
    """Changes of the pods during a test."""
    with watching(stage.cluster) as pods:
        yield pods
