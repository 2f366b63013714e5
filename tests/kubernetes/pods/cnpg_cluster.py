"""A Cluster of CloudNativePG in a test."""

from __future__ import annotations

import base64
import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from tests.kubernetes.adoption.release import ctr, nodes_of
from tests.kubernetes.pods.images import OPERATOR_IMAGE
from tests.kubernetes.pods.load import Server
from tests.kubernetes.pods.pod_stage import OPERATOR, Obj, PodStage, restarts
from tests.kubernetes.pods.postgres import NAME, cluster_of_two
from tests.kubernetes.real_kubernetes import eventually

CLUSTERS: Final = "clusters.postgresql.cnpg.io"
NEXT_OPERATOR_IMAGE: Final = f"{OPERATOR_IMAGE}-next"
"""Another name of the same program. The operator replaces pods whose first container has another image than itself."""


@dataclass(frozen=True, slots=True)
class CnpgCluster:
    """A primary and a standby. ``password`` is that of the user app."""

    stage: PodStage
    password: str = field(repr=False)

    @property
    def primary(self) -> str:
        """The pod that takes writes."""
        return str(self._status()["currentPrimary"])

    @property
    def target(self) -> str:
        """The pod that is to take writes."""
        return str(self._status()["targetPrimary"])

    @property
    def pods(self) -> dict[str, tuple[str, int]]:
        """Each pod's uid, and how often its containers restarted."""
        found = self.stage.cluster.get("pods", f"--selector=cnpg.io/cluster={NAME}")["items"]
        return {each["metadata"]["name"]: (each["metadata"]["uid"], restarts(each)) for each in found}

    def server(self, pod: str) -> Server:
        """The database in one of its pods."""
        return self.stage.server(pod, self.password)

    def is_healthy(self) -> bool:
        """All instances serve."""
        return self._status().get("readyInstances") == 2 and "healthy" in self._status().get("phase", "")

    def until_healthy(self) -> None:
        """Returns once all instances serve."""
        eventually(self.is_healthy, "both instances serve")

    def is_looked_at(self) -> None:
        """The operator reconciles it now: it has changed."""
        self._annotate("autoscale.test/looked-at", str(time.time_ns()))

    def upgrade_operator(self) -> None:
        """The operator's image gets another name; the new operator then replaces the Cluster's pods one by one."""
        for pid in nodes_of(self.stage.cluster):
            subprocess.run([*ctr(pid), "tag", "--force", OPERATOR_IMAGE, NEXT_OPERATOR_IMAGE], check=True)
        deployment, namespace = OPERATOR
        for what in (("image", "manager="), ("env", "OPERATOR_IMAGE_NAME=")):
            setting = f"{what[1]}{NEXT_OPERATOR_IMAGE}"
            self.stage.cluster.kubectl("set", what[0], f"--namespace={namespace}", deployment, setting)
        self.stage.cluster.kubectl("rollout", "status", f"--namespace={namespace}", deployment, "--timeout=120s")

    def _annotate(self, name: str, text: str) -> None:
        patch = json.dumps({"metadata": {"annotations": {name: text}}})
        self.stage.cluster.kubectl("patch", CLUSTERS, NAME, "--type=merge", f"--patch={patch}")

    def _status(self) -> Obj:
        found: Obj = self.stage.cluster.get(CLUSTERS, NAME).get("status", {})
        return found


@contextmanager
def cnpg_cluster(stage: PodStage) -> Iterator[CnpgCluster]:
    """Both instances serve; afterwards nothing is left of them but their volumes."""
    # The operator's webhook answers a moment after its pod is Available.
    typed = json.dumps(cluster_of_two())
    apply = ("apply", "--filename=-")
    eventually(lambda: stage.cluster.try_kubectl(*apply, typed=typed).returncode == 0, "the Cluster is made", 60.0)
    try:
        stage.cluster.wait("condition=Ready", f"{CLUSTERS}/{NAME}")
        secret = stage.cluster.get("secret", f"{NAME}-app")["data"]["password"]
        yield CnpgCluster(stage, base64.b64decode(secret).decode())
    finally:
        stage.cluster.kubectl("delete", CLUSTERS, NAME, "--ignore-not-found", "--timeout=120s")
