"""The rendered ``pods`` values: rights, mounts and a webhook exist only if postgres in pods is served."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.kubernetes.chart.test_chart import named, objects, workload

pytestmark = pytest.mark.kubernetes

ON: dict[str, Any] = {"pods": {"enabled": True}}


def powers(values: dict[str, Any]) -> dict[str, bool]:
    """The parts needed for postgres in pods that the rendering contains."""
    rendered = {named(each): json.dumps(each) for each in objects(values)}
    daemon = rendered["DaemonSet", "autoscaling-agent"]
    return {
        "resize": "pods/resize" in rendered["ClusterRole", "autoscaling-agent"],
        "cgroup": "hostPath" in daemon,
        "reclaimer": "agent.reclaimer" in daemon and "RECLAIMER_SOCKET" in daemon,
        "clusters": "postgresql.cnpg.io" in rendered["ClusterRole", "autoscaling-scheduler"],
        "follows": '"pods"' in rendered.get(("ClusterRole", "autoscaling-injector"), ""),
        "webhook": ("MutatingWebhookConfiguration", "autoscaling-injector") in rendered,
        "fence": ("ValidatingAdmissionPolicy", "autoscaling-agents-pods") in rendered,
    }


def test_pods_are_off_by_default_except_policies() -> None:
    """A fence that came with the right might come after it."""
    assert [name for name, is_there in powers({}).items() if is_there] == ["fence"]
    assert all(powers(ON).values())


def test_scheduler_explains_denials_of_pods_to_groups() -> None:
    rendered = {named(each): each for each in objects({**ON, "groups": {"enabled": True}})}
    rules = rendered["ClusterRole", "autoscaling-groups"]["rules"]
    verbs = {verb for rule in rules if rule["resources"] == ["pods"] for verb in rule["verbs"]}
    assert verbs == {"get", "list", "watch", "patch"}


def test_reclaimer_and_webhook_are_optional() -> None:
    without_reclaimer = {"pods": {"enabled": True, "reclaimer": {"enabled": False}}}
    assert [name for name, is_there in powers(without_reclaimer).items() if not is_there] == ["reclaimer"]
    without_certificates = {**ON, "certificates": {"enabled": False}}
    assert [name for name, is_there in powers(without_certificates).items() if not is_there] == ["follows", "webhook"]


def test_cgroup_root_comes_from_values() -> None:
    spec = workload({"pods": {"enabled": True, "cgroupRoot": "/host/c: {g}"}}, "autoscaling-agent")["spec"]
    (volume,) = (each for each in spec["volumes"] if each["name"] == "cgroup")
    assert volume["hostPath"] == {"path": "/host/c: {g}", "type": "Directory"}


def test_webhook_excludes_the_releases_namespace() -> None:
    (configuration,) = (each for each in objects(ON) if each["kind"] == "MutatingWebhookConfiguration")
    (hook,) = configuration["webhooks"]
    (spared,) = hook["namespaceSelector"]["matchExpressions"]
    assert spared["values"] == ["kube-system", "kube-public", "kube-node-lease", "ours"]
