"""The rendered page: its history and its title."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from tests.kubernetes.chart.test_chart import named, objects, workload

pytestmark = pytest.mark.kubernetes

_HISTORY: Final = "--history=/var/lib/autoscale/history.sqlite"


@pytest.mark.parametrize(
    ("history", "arguments", "volume", "claims"),
    [
        ({}, [_HISTORY, "--history-volume=3Gi"], {"emptyDir": {"sizeLimit": "3Gi"}}, 0),
        (
            {"persistent": True, "size": "2Gi", "storageClass": "fast"},
            [_HISTORY, "--history-volume=2Gi"],
            {"persistentVolumeClaim": {"claimName": "autoscaling-dashboard"}},
            1,
        ),
        (
            {"persistent": True, "existingClaim": "mine"},
            [_HISTORY, "--history-volume=3Gi"],
            {"persistentVolumeClaim": {"claimName": "mine"}},
            0,
        ),
        ({"prometheus": "http://prometheus:9090"}, ["--prometheus=http://prometheus:9090"], None, 0),
        ({"enabled": False}, [], None, 0),
    ],
)
def test_history_volume_follows_values(
    history: dict[str, Any], arguments: list[str], volume: dict[str, Any] | None, claims: int
) -> None:
    values = {"dashboard": {"enabled": True, "history": history}}
    spec = workload(values, "autoscaling-dashboard")["spec"]
    said = [each for each in spec["containers"][0]["args"] if each.startswith(("--history", "--prometheus"))]
    assert said == arguments
    assert spec.get("volumes", []) == ([{"name": "history", **volume}] if volume else [])
    found = {named(each): each for each in objects(values)}
    made = [each for name, each in found.items() if name[0] == "PersistentVolumeClaim"]
    assert [each["metadata"]["annotations"] for each in made] == [{"helm.sh/resource-policy": "keep"}] * claims
    reads_nodes = "nodes" in json.dumps(found["ClusterRole", "autoscaling-dashboard"]["rules"])
    assert reads_nodes == (volume is not None)
    strategy = found["Deployment", "autoscaling-dashboard"]["spec"].get("strategy")
    assert strategy == ({"type": "Recreate"} if volume and "emptyDir" not in volume else None)


@pytest.mark.parametrize("title", ["production: eu", "eu # 1", '"eu"', "- [eu]", "{{ eu }}"])
def test_page_title_accepts_any_cluster_name(title: str) -> None:
    values = {"dashboard": {"enabled": True, "title": title, "history": {"prometheus": "http://p/?a=b: c # d"}}}
    said = workload(values, "autoscaling-dashboard")["spec"]["containers"][0]["args"]
    assert said[-2:] == ["--prometheus=http://p/?a=b: c # d", f"--title={title}"]
