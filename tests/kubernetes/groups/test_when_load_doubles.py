"""A load that doubles over pods that take 30 s to be ready, beside the real HPA controller, metrics-server and VPA.

Replicas share the load by themselves: each asks DNS how many are ready, and works its part of it. Ten minutes of this
are recorded; with ``AUTOSCALE_PICTURES=1`` the picture in docs/groups.md is drawn of them.

The last file of this folder by name: what the other tests look at is busy in its first 90 seconds only.
"""

from __future__ import annotations

import os
import time
from typing import Any

import pytest

from protocol.kubernetes.resources import DEPLOYMENTS, HORIZONTAL_AUTOSCALERS, HVPAS, SERVICES
from protocol.units import MilliCpu
from tests.deploy.manifests import ROOT
from tests.kubernetes.groups.group_picture import Moment, draw
from tests.kubernetes.groups.scene import NAMESPACE, Object, Scene, cpu_metric, deployment, hvpa

pytestmark = pytest.mark.kubernetes

NAME = "doubled"
QUIET = 60_000
"""Rounds of a loop in a second that all replicas share: some 80m on an idle core."""
CALM, WHOLE, LOOK = 150.0, 600.0, 5.0
TARGET = 0.8

WORK = f"""
for name in hostname nslookup grep wget wc; do alias $name="busybox $name"; done
me=$(hostname -i)
while :; do
  ready=$(nslookup {NAME}.{NAMESPACE}.svc.cluster.local 2>/dev/null | grep '^Address' | grep -v ':53')
  share=0
  if echo "$ready" | grep -q "$me$"; then
    load=$(wget -qO- http://{NAME}-load.{NAMESPACE}.svc.cluster.local || echo 0)
    share=$((load / $(echo "$ready" | wc -l)))
  fi
  for second in 1 2 3 4 5; do
    i=0; while [ $i -lt $share ]; do i=$((i+1)); done
    sleep 1
  done
done
"""
SERVE = "mkdir -p /tmp/www; echo $LOAD > /tmp/www/index.html; exec busybox httpd -f -p 8080 -h /tmp/www"


def service(name: str, port: int, **spec: Any) -> Object:
    ports = [{"port": 80, "targetPort": port}]
    body = {"selector": {"app": name}, "ports": ports, **spec}
    return {"apiVersion": SERVICES.api_version, "kind": SERVICES.kind, "metadata": {"name": name}, "spec": body}


def with_container(found: Object, **fields: Any) -> Object:
    """A Deployment with fields of its only container."""
    spec = found["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    pod = {**spec["template"]["spec"], "containers": [{**container, **fields}]}
    return {**found, "spec": {**spec, "template": {**spec["template"], "spec": pod}}}


def load(rounds: int) -> Object:
    """A server that says how much work there is in a second."""
    ready = {"httpGet": {"path": "/", "port": 8080}, "periodSeconds": 1}
    environment = [{"name": "LOAD", "value": str(rounds)}]
    return with_container(deployment(f"{NAME}-load", SERVE), env=environment, readinessProbe=ready)


def workload() -> Object:
    """Two replicas of 50m that are ready after half a minute."""
    ready = {"exec": {"command": ["true"]}, "initialDelaySeconds": 30}
    resources = {"requests": {"cpu": "50m", "memory": "32Mi"}}
    found = with_container(deployment(NAME, WORK), readinessProbe=ready, resources=resources)
    return {**found, "spec": {**found["spec"], "replicas": 2}}


GROUP = hvpa(
    NAME,
    mode="EffectiveIntervals",
    scalingIntervals=[{"maxReplicas": 4, "maxResources": {"cpu": "100m"}}, {"maxResources": {"cpu": "400m"}}],
    hpaTemplate={
        "minReplicas": 2,
        "maxReplicas": 10,
        "metrics": [cpu_metric(type="Utilization", averageUtilization=round(100 * TARGET))],
    },
    vpaTemplate={
        "resourcePolicy": {
            "containerPolicies": [
                {
                    "containerName": "app",
                    "controlledResources": ["cpu"],
                    "minAllowed": {"cpu": "20m"},
                    "maxAllowed": {"cpu": "400m"},
                }
            ]
        }
    },
)
SCENE = (
    load(QUIET),
    service(f"{NAME}-load", 8080),
    service(NAME, 8080, clusterIP="None"),
    workload(),
)


def seen(scene: Scene, begin: float) -> Moment:
    """The group now."""
    target = scene.get(DEPLOYMENTS, NAME)
    metrics = scene.status(HORIZONTAL_AUTOSCALERS, NAME).get("currentMetrics") or []
    used = [each.get("resource", {}).get("current", {}).get("averageValue", "0") for each in metrics]
    ready = target["status"].get("readyReplicas", 0)
    return Moment(
        at=round(time.monotonic() - begin, 1),
        replicas=target["spec"]["replicas"],
        ready=ready,
        size=MilliCpu.parse(scene.requests(NAME)["cpu"]).value,
        used=ready * (MilliCpu.parse(used[0]).value if used else 0),
    )


def test_doubled_load_settles(scene: Scene) -> None:
    scene.until(lambda: scene.get(DEPLOYMENTS, NAME)["status"].get("readyReplicas"), 2, "two ready replicas")
    scene.apply(GROUP)
    scene.until(lambda: bool(scene.status(HORIZONTAL_AUTOSCALERS, NAME).get("currentMetrics")), True, "a measured use")
    begin, moments, doubled = time.monotonic(), [], False
    while (since := time.monotonic() - begin) < WHOLE:
        if since >= CALM and not doubled:
            scene.apply(load(2 * QUIET))
            doubled = True
        moments.append(seen(scene, begin))
        time.sleep(LOOK)
    if os.environ.get("AUTOSCALE_PICTURES"):
        draw(moments, CALM, ROOT / "docs" / "groups" / "doubled-load.svg")
    last = [each for each in moments if each.at >= WHOLE - 120]
    need = sum(each.used for each in last) / len(last) / TARGET
    assert {(each.replicas, each.size) for each in last} == {(last[-1].replicas, last[-1].size)}, "it has settled"
    assert last[-1].ordered >= 0.85 * need, "what is measured sways, and an HPA leaves a tenth alone"
    assert max(each.ordered for each in moments) <= max(moments[0].ordered, 2.3 * need)
    assert scene.condition(HVPAS, NAME, "PodsAsOrdered") == ("", "", "")
