"""A cluster that is reached through its API server: programs are asked in the pod that leads."""

from __future__ import annotations

from pathlib import Path

import httpx2 as httpx
import pytest

from deploy.kube.client import ApiClient
from protocol.kubernetes.objects import Json
from protocol.names import LABEL_ENABLED
from protocol.runtime.kubernetes.http_api import HttpApi
from protocol.units import Seconds
from scheduler_plugin.dashboard.explanation import RequestErrors, database_explanation
from scripts.autoscale import site as site_module
from scripts.autoscale.site import AGENT, SCHEDULER, RemoteSite, SiteError
from tests.scripts.clusters import cluster_at

PODS = "/api/v1/namespaces/scaling/pods"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/scaling/leases/autoscaling-scheduler"


def pod(name: str, phase: str = "Running") -> Json:
    return {"metadata": {"namespace": "scaling", "name": name}, "status": {"phase": phase}}


def answers(pods: list[Json], holder: str | None, *silent: str) -> RemoteSite:
    """Each pod says its own name at its proxy; those that are silent do not respond."""

    def answer(request: httpx.Request) -> httpx.Response:
        path = request.url.path
        if path == "/api/v1/pods":
            assert request.url.params["labelSelector"] == "app.kubernetes.io/name=autoscaling-scheduler"
            return httpx.Response(200, json={"metadata": {"resourceVersion": "1"}, "items": pods})
        if path == LEASE and holder is not None:
            return httpx.Response(200, json={"spec": {"holderIdentity": holder}})
        name = path.removeprefix(f"{PODS}/").partition(":")[0]
        if path == f"{PODS}/{name}:10297/proxy/nodes" and name not in silent:
            return httpx.Response(200, json={"said": name})
        return httpx.Response(404, json={"reason": "NotFound"})

    return RemoteSite(
        cluster_at(),
        ApiClient(
            HttpApi(httpx.AsyncClient(base_url="http://api", transport=httpx.MockTransport(answer)), lambda: None)
        ),
    )


TWO = [pod("s-1"), pod("s-2"), pod("s-3", "Pending")]


@pytest.mark.parametrize(
    ("site", "said"),
    [
        (answers(TWO, "s-2-1a2b3c4d"), {"said": "s-2"}),
        (answers(TWO, "s-1-1a2b3c4d"), {"said": "s-1"}),
        (answers(TWO, None), {"said": "s-1"}),
        (answers(TWO, "s-2-1a2b3c4d", "s-2"), {"said": "s-1"}),
        (answers(TWO, "s-2-1a2b3c4d", "s-1", "s-2"), None),
        (answers([pod("s-1")], None), {"said": "s-1"}),
        (answers([], None), None),
    ],
)
async def test_the_replica_that_leads_is_asked(site: RemoteSite, said: Json | None) -> None:
    assert await site.of_scheduler("/nodes") == said


@pytest.mark.parametrize("body", [b'{"a":' * 100_000 + b"1" + b"}" * 100_000, b'{"because": "\xff"}', b"<html>"])
async def test_an_answer_that_is_no_json_is_none(body: bytes) -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(200, content=body))
    site = RemoteSite(
        cluster_at(), ApiClient(HttpApi(httpx.AsyncClient(base_url="http://api", transport=transport), lambda: None))
    )
    assert await site.of_agent(pod("a-1"), "/explain") is None


KUBECTL = {
    "silent": ("exec sleep 60", "kubectl port-forward pod/db-x timed out after 0.2 s"),
    "refusing": ("echo 'error: unable to forward port' >&2; exit 1", "error: unable to forward port"),
    "missing": ("", "cannot run kubectl: No such file or directory"),
}


DB: Json = {"metadata": {"namespace": "shop", "name": "db"}, "status": {"podName": "db-x"}}


def kubectl_that(script: str, folder: Path) -> str:
    """The ``PATH`` on which kubectl is this shell script."""
    kubectl = folder / "kubectl"
    kubectl.write_text(f"#!/bin/sh\n{script}\n")
    kubectl.chmod(0o755)
    return f"{folder}:/bin"


@pytest.mark.parametrize("kind", KUBECTL)
async def test_port_not_opened_by_kubectl_fails(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script, said = KUBECTL[kind]
    monkeypatch.setenv("PATH", kubectl_that(script, tmp_path) if script else str(tmp_path))
    monkeypatch.setattr(site_module, "FORWARDED_WITHIN", Seconds(0.2 if kind == "silent" else 20.0))
    with pytest.raises(SiteError) as caught:
        async with answers([], None).into_vm(DB, 5432):
            pass
    assert str(caught.value) == said


async def test_port_forward_leads_into_the_vm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = tmp_path / "asked"
    script = f"echo \"$*\" > {asked}; echo 'Forwarding from 127.0.0.1:40123 -> 5432'; exec sleep 60"
    monkeypatch.setenv("PATH", kubectl_that(script, tmp_path))
    async with answers([], None).into_vm(DB, 5432) as place:
        assert place == ("127.0.0.1", 40123)
    assert asked.read_text().strip() == (
        "--namespace shop port-forward --pod-running-timeout=45s --address 127.0.0.1 pod/db-x :5432"
    )


async def test_reason_of_a_silent_program_is_kept() -> None:
    """``explain`` said "it may be starting" when the API server could not reach any pod."""
    sentence = "error trying to reach service: dial tcp 10.0.1.2:9101: i/o timeout"
    refused = httpx.Response(503, json={"kind": "Status", "message": sentence})
    transport = httpx.MockTransport(lambda _: refused)
    site = RemoteSite(
        cluster_at(), ApiClient(HttpApi(httpx.AsyncClient(base_url="http://api", transport=transport), lambda: None))
    )
    assert (await site.of_agent(pod("a-1"), "/explain"), await site.of_scheduler("/nodes")) == (None, None)
    assert sentence in site.request_errors[AGENT]
    assert site.request_errors[AGENT].startswith("pod scaling/a-1: ")
    assert sentence in site.request_errors[SCHEDULER]


async def test_answer_clears_the_reason() -> None:
    site = answers(TWO, "s-2-1a2b3c4d", "s-2")
    assert (await site.of_scheduler("/nodes"), site.request_errors[SCHEDULER]) == ({"said": "s-1"}, "")
    none = answers([], None)
    assert (await none.of_scheduler("/nodes"), none.request_errors[SCHEDULER]) == (
        None,
        "no pod with app.kubernetes.io/name=autoscaling-scheduler runs",
    )


@pytest.mark.parametrize(
    ("labels", "errors", "agent", "scheduler"),
    [
        ({}, RequestErrors("x", "y"), "It is not enabled for autoscaling", "The scheduler does not respond: y"),
        (
            {LABEL_ENABLED: "true"},
            RequestErrors("x"),
            "Its agent does not respond: x",
            "The scheduler has no pod of it.",
        ),
        (
            {LABEL_ENABLED: "true"},
            RequestErrors(),
            "Its agent does not respond: it may be starting",
            "The scheduler has no pod",
        ),
    ],
)
def test_explanation_names_the_reason(labels: Json, errors: RequestErrors, agent: str, scheduler: str) -> None:
    vm: Json = {"metadata": {"namespace": "shop", "name": "db", "labels": labels}}
    lines = list(database_explanation(vm, None, None, (), errors))
    assert [any(line.startswith(said) for line in lines) for said in (agent, scheduler)] == [True, True]
