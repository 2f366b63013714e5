"""Waiting for what was installed, and speaking to kubectl."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from deploy.local.kubernetes.machine.installation import InstallationError, apply_manifests, wait_rolled_out
from deploy.local.kubernetes.plan.installation_plan import FOR_VMS
from deploy.local.kubernetes.programs.images import InstallationParts
from protocol.kubernetes.objects import Json, integer
from protocol.kubernetes.resources import DEPLOYMENTS, PODS
from protocol.messages import ObjectName
from tests.fake_clock import FakeClock, settle
from tests.neonvm.in_process import InProcess

SYSTEM = "kube-system"


async def deploy(api: InProcess, *names: str) -> None:
    for name in names:
        spec = {
            "replicas": 1,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"containers": [{"name": "main", "image": "x"}]},
            },
        }
        body: Json = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}
        made = await api.client().create(DEPLOYMENTS, SYSTEM, body)
        status: Json = {"observedGeneration": integer(made, "metadata", "generation"), "availableReplicas": 1}
        await api.client().merge_patch(DEPLOYMENTS, ObjectName(SYSTEM, name), {"status": status}, "status")


async def test_wait_names_missing_workloads() -> None:
    api, clock, said = InProcess(), FakeClock(), list[str]()
    first, *others = sorted(FOR_VMS.workloads)
    await deploy(api, *others)
    waiting = asyncio.ensure_future(wait_rolled_out(api.client(), clock, said.append))
    await settle()
    await clock.advance(1.0)
    assert (said, waiting.done()) == ([f"waiting for {first}"], False)
    await deploy(api, first)
    await clock.advance(1.0)
    await waiting


async def test_hopeless_pod_ends_the_wait() -> None:
    api, clock = InProcess(), FakeClock()
    spec = {"containers": [{"name": "main", "image": "localhost:5001/x:dev"}]}
    body: Json = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": spec}
    await api.client().create(PODS, SYSTEM, body)
    container = {"name": "main", "image": "localhost:5001/x:dev", "state": {"waiting": {"reason": "ErrImagePull"}}}
    status: Json = {"status": {"containerStatuses": [container]}}
    await api.client().merge_patch(PODS, ObjectName(SYSTEM, "x"), status, "status")
    with pytest.raises(InstallationError, match="pod x: image localhost:5001/x:dev is missing"):
        await wait_rolled_out(api.client(), clock, lambda _: None)


async def test_the_wait_has_an_end() -> None:
    api, clock = InProcess(), FakeClock()
    api.is_away = True
    waiting = asyncio.ensure_future(wait_rolled_out(api.client(), clock, lambda _: None))
    for _ in range(200):
        await clock.advance(1.0)
    with pytest.raises(InstallationError, match="not rolled out after 180 s: the API server"):
        await waiting


async def test_what_kubectl_complains_of_is_the_failure(tmp_path: Path) -> None:
    program = tmp_path / "kubectl"
    program.write_text('#!/bin/sh\ncat > "$0.typed"\necho "no such kind" >&2\nexit 1\n')
    program.chmod(0o755)
    parts = InstallationParts([], "v1.35.2", str(program))
    with pytest.raises(InstallationError, match="kubectl apply: no such kind"):
        await apply_manifests(tmp_path / "kubeconfig", parts)
    assert "registry.k8s.io/kube-scheduler:v1.35.2" in (tmp_path / "kubectl.typed").read_text()
