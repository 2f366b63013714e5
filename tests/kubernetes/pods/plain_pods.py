"""Postgres pods of a StatefulSet or a Deployment, or without a controller."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.kubernetes.pods.pod_stage import Obj, PodStage, actual
from tests.kubernetes.pods.postgres import FLOOR
from tests.kubernetes.real_kubernetes import eventually

READY = "condition=Ready"


@contextmanager
def applied(stage: PodStage, *objects: Obj) -> Iterator[None]:
    """Apply the objects within the block, and delete them afterwards."""
    named = [f"{each['kind']}/{each['metadata']['name']}" for each in objects]
    apps = f"--selector=app in ({','.join(each['metadata']['name'] for each in objects)})"
    stage.cluster.apply(*objects)
    try:
        yield
    finally:
        stage.cluster.kubectl("delete", *named, "--ignore-not-found", "--timeout=120s")
        eventually(lambda: not stage.cluster.get("pods", apps)["items"], "their pods are gone")


def pod_of(stage: PodStage, app: str) -> str:
    """The name of the only pod of the workload, once it is ready."""

    def names() -> list[str]:
        found = stage.cluster.get("pods", f"--selector=app={app}")["items"]
        return [each["metadata"]["name"] for each in found if "deletionTimestamp" not in each["metadata"]]

    eventually(lambda: len(names()) == 1, f"a pod of {app}", 60.0)
    stage.cluster.wait(READY, f"pod/{names()[0]}")
    return names()[0]


def rests(stage: PodStage, *pods: str) -> None:
    """Returns once they have their floor: postgres is busy while it starts."""
    eventually(lambda: all(actual(stage.pod(pod)) == FLOOR for pod in pods), "they are small", 60.0)
