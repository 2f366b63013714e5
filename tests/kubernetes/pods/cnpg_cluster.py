"""A Cluster of CloudNativePG in a test."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from tests.kubernetes.pods.load import Server
from tests.kubernetes.pods.pod_stage import Obj, PodStage, restarts
from tests.kubernetes.pods.postgres import NAME, cluster_of_two
from tests.kubernetes.real_kubernetes import eventually

CLUSTERS: Final = "clusters.postgresql.cnpg.io"


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
    def pods(self) -> dict[str, tuple[str, int]]:
        """Each pod's uid, and how often its containers began anew."""
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

    def is_made_anew(self) -> None:
        """The operator makes its pods anew, one after the other, as with an upgrade of its own."""
        self._annotate("kubectl.kubernetes.io/restartedAt", time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))

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
