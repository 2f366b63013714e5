"""The primary of a Cluster waits on a full node, and its standby, which has room, takes its place (B.7)."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Final

import pytest

from protocol.kubernetes.resources import HVPAS
from protocol.kubernetes.timestamps import micro_timestamp
from protocol.names import ANNOTATION_CONFIG, ANNOTATION_FLOOR, ANNOTATION_SWITCHOVER
from scheduler_plugin.groups.controllers.tandem import DENIED
from scheduler_plugin.groups.core.tandem import PATIENCE, Switchover
from tests.kubernetes.pods.cnpg_cluster import CLUSTERS, CnpgCluster, cnpg_cluster
from tests.kubernetes.pods.load import load
from tests.kubernetes.pods.plain_pods import applied, rests
from tests.kubernetes.pods.pod_stage import Obj, PodStage, actual
from tests.kubernetes.pods.pod_watch import PodWatch
from tests.kubernetes.pods.postgres import AT_ONCE, FLOOR, HOLD, NAME
from tests.kubernetes.pods.test_full_node import filler, free
from tests.kubernetes.real_kubernetes import eventually

pytestmark = pytest.mark.kubernetes

HVPA: Final = f"hvpas.autoscaling.k8s.io/{NAME}"
SOON: Final = 60.0
"""Seconds until the groups' program has seen a denial, and until a standby has grown or taken over."""
PROMOTED: Final = PATIENCE.total_seconds() + 2 * SOON


@contextmanager
def in_tandem(postgres: CnpgCluster) -> Iterator[None]:
    """An Hvpa keeps the standby at the primary's size, and the owner allows a switchover."""
    cluster = postgres.stage.cluster
    body = {
        "apiVersion": HVPAS.api_version,
        "kind": HVPAS.kind,
        "metadata": {"name": NAME},
        "spec": {
            "hpaTemplate": {"minReplicas": 2, "maxReplicas": 2},
            "targetRef": {"apiVersion": "postgresql.cnpg.io/v1", "kind": "Cluster", "name": NAME},
        },
    }
    cluster.kubectl("annotate", CLUSTERS, NAME, f"{ANNOTATION_SWITCHOVER}=true")
    # Its first election counts as a change of the primary, and there is none within an hour of one.
    yesterday = micro_timestamp((datetime.now(UTC) - timedelta(days=1)).timestamp())
    patch = json.dumps({"status": {"targetPrimaryTimestamp": yesterday}})
    cluster.kubectl("patch", CLUSTERS, NAME, "--subresource=status", "--type=merge", f"--patch={patch}")
    cluster.apply(body)
    try:
        yield
    finally:
        cluster.kubectl("delete", HVPA, "--ignore-not-found", "--timeout=60s")


def keeps_wishes(stage: PodStage) -> None:
    """From now on a second in which the load gets too little of the machine does not end what the primary lacks."""
    longer: Obj = {"cpu": [{"hold": {"window": "10m"}}], "memory": HOLD, "maxGap": "60s"}
    config = {**AT_ONCE, "smoothing": longer}
    # On the Cluster: the operator reverts what only a pod has.
    inherited = {"annotations": {ANNOTATION_CONFIG: json.dumps(config)}}
    patch = json.dumps({"spec": {"inheritedMetadata": inherited}})
    stage.cluster.kubectl("patch", CLUSTERS, NAME, "--type=merge", f"--patch={patch}")


def denial(stage: PodStage) -> str:
    """The Hvpa's message about a primary without room; empty if it has room."""
    found: Obj = stage.cluster.get(HVPA).get("status", {})
    return next((each["reason"] for each in found.get("conditions", []) if each["type"] == DENIED), "")


def switchovers(stage: PodStage) -> list[str]:
    """Messages of switchover Events."""
    found = stage.cluster.get("events", "--field-selector=reason=Switchover")["items"]
    return [f"{each['involvedObject']['kind']}/{each['involvedObject']['name']}" for each in found]


def test_standby_takes_over_from_primary_on_full_node(stage: PodStage, watch: PodWatch) -> None:
    with cnpg_cluster(stage) as postgres:
        lacks = postgres.primary
        (other,) = postgres.pods.keys() - {lacks}
        postgres.server(lacks).prepare(scale=1)
        for pod in (lacks, other):
            # The size of an earlier test's pod of that name.
            stage.cluster.kubectl("annotate", f"pod/{pod}", f"{ANNOTATION_FLOOR}-")
        rests(stage, lacks, other)
        node = str(stage.pod(lacks)["spec"]["nodeName"])
        assert stage.pod(other)["spec"]["nodeName"] != node
        with in_tandem(postgres), applied(stage, filler("filler", free(stage, node), node)):
            stage.cluster.wait("condition=Ready", "pod/filler")
            # It may have grown before the scheduler knew of the filler. What it is denied must be little enough that
            # the load always needs it.
            rests(stage, lacks, other)
            keeps_wishes(stage)
            with load(postgres.server(lacks), "-S", may_fail=True) as busy:
                eventually(lambda: denial(stage) == Switchover.WAITING, "the primary is denied room", SOON)
                watch.until(other, lambda pod: actual(pod).cpu > FLOOR.cpu, busy.began, SOON)
                assert postgres.primary == lacks, "it waits first: the node may get room"
                eventually(lambda: postgres.target == other, "the standby is promoted", PROMOTED)
                promoted = time.monotonic()
                print(f"promoted {promoted - busy.began:.0f} s after the load began")
            eventually(lambda: postgres.primary == other, "the standby is the primary", SOON)
            print(f"it is the primary after another {time.monotonic() - promoted:.1f} s")
            postgres.until_healthy()
            postgres.server(other).prepare(scale=1)  # it takes writes
            assert switchovers(stage) == [f"Cluster/{NAME}"]
            assert actual(stage.pod(other)).cpu > FLOOR.cpu
            stage.until_books_agree()
