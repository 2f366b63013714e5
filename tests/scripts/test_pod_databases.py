"""Commands about a postgres in a pod: named as kubectl prints it, explained like a VM, and never migrated."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path

import httpx2 as httpx
import pytest
import typer
import yaml
from typer.testing import CliRunner

from deploy.kube.client import ApiClient
from protocol.kubernetes.objects import Json, name_of
from protocol.kubernetes.resources import PODS, VIRTUAL_MACHINES
from protocol.messages import ObjectName
from protocol.runtime.kubernetes.http_api import HttpApi
from scripts.autoscale.cluster_flags import MissingDatabaseError
from scripts.autoscale.explain import _explanation
from scripts.autoscale.main import app
from scripts.autoscale.site import NAME_LABEL, SiteError
from scripts.autoscale.terminal import completion
from scripts.autoscale.terminal.completion import complete_database, fitting, listed
from tests.pod_databases import pod_database
from tests.scheduler_plugin.objects import vm_pod

PATH = "/api/v1/namespaces/shop/pods"
AGENT: Json = {
    "metadata": {"namespace": "kube-system", "name": "agent-n1", "labels": {NAME_LABEL: "autoscaling-agent"}},
    "spec": {"nodeName": "n1"},
}


class Place:
    """A site with a pod that opted in, the pod of a VM, and the agent of the node, whose explanations are asked for."""

    title = "a test"

    def __init__(self) -> None:
        self.request_errors: dict[str, str] = {}
        self.asked: list[str] = []
        self.pods = {"pg-1": pod_database("pg-1", "shop"), "db-pod": vm_pod("db", "n1", namespace="shop")}
        transport = httpx.MockTransport(self._answer)
        self.client = ApiClient(HttpApi(httpx.AsyncClient(base_url="http://api", transport=transport), lambda: None))

    def _answer(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        self.asked.append(f"{path}?{request.url.params}".rstrip("?"))
        name = path.removeprefix(f"{PATH}/")
        if path != name:
            pod = self.pods.get(name)
            return httpx.Response(404, json={"reason": "NotFound"}) if pod is None else httpx.Response(200, json=pod)
        listed_pods = {PATH: list(self.pods.values()), "/api/v1/pods": [AGENT]}.get(path, [])
        return httpx.Response(200, json={"metadata": {"resourceVersion": "1"}, "items": listed_pods})

    async def of_scheduler(self, path: str) -> Json | None:
        self.asked.append(path)
        return {"pods": []}

    async def of_groups(self, path: str) -> Json | None:
        raise AssertionError(path)

    async def of_agent(self, pod: Json, path: str) -> Json | None:
        self.asked.append(f"{name_of(pod)}{path}")
        return {"because": "idle"}

    def into_vm(self, vm: Json, port: int) -> AbstractAsyncContextManager[tuple[str, int]]:
        raise AssertionError(port)


@pytest.mark.parametrize("given", ["pod/pg-1", "shop/pod/pg-1"])
async def test_pod_is_explained(given: str) -> None:
    place = Place()
    lines, fields = await _explanation(place, given, "shop")
    assert lines[0] == "shop/pod/pg-1 has 1 vCPU and 1Gi; it is Running on n1."
    assert "Its agent: idle." in lines
    assert fields is not None
    assert (fields["vm"], fields["agent"]) == (place.pods["pg-1"], {"because": "idle"})
    assert place.asked[-2:] == ["kube-system/agent-n1/explain/shop/pod/pg-1", "/explain/shop/pod/pg-1"]


@pytest.mark.parametrize(
    ("name", "error", "why"),
    [
        ("db-pod", SiteError, "shop/pod/db-pod is not autoscaled: it has no label"),
        ("none", MissingDatabaseError, "there is no pod shop/none"),
    ],
)
async def test_other_pods_are_refused(name: str, error: type[Exception], why: str) -> None:
    """A pod that does not exist is no group either."""
    place = Place()
    with pytest.raises(error, match=why):
        await _explanation(place, f"pod/{name}", "shop")
    assert place.asked == [f"{PATH}/{name}"]


def test_pod_is_not_migrated(tmp_path: Path) -> None:
    context = {"name": "here", "context": {"cluster": "here", "user": "me", "namespace": "shop"}}
    config = {
        "clusters": [{"name": "here", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "me", "user": {}}],
        "contexts": [context],
        "current-context": "here",
    }
    (tmp_path / "config").write_text(yaml.safe_dump(config))
    arguments = ["migrate", "pod/pg-1", "--kubeconfig", str(tmp_path / "config")]
    found = CliRunner().invoke(app(["migrate", "top"]), arguments)
    said = " ".join(found.output.replace("│", " ").split())
    assert (found.exit_code, "shop/pod/pg-1 is a pod: it is resized in place" in said) == (2, True), said


NAMES = [ObjectName("shop", "pg-1"), ObjectName("shop", "pod/pg-1"), ObjectName("bank", "pod/pg-2")]


@pytest.mark.parametrize(
    ("begun", "expected"),
    [
        ("p", ["pg-1", "pod/pg-1"]),
        ("pod/", ["pod/pg-1"]),
        ("bank/pod/p", ["bank/pod/pg-2"]),
        ("shop/", ["shop/pg-1", "shop/pod/pg-1"]),
    ],
)
def test_pods_are_completed_as_one_may_type_them(begun: str, expected: list[str]) -> None:
    assert [name for name in fitting(NAMES, "shop", begun) if not name.startswith("bank/") or "bank" in begun] == (
        expected
    )


async def test_only_opted_in_pods_are_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place()
    selector = "autoscaling.neon.tech/enabled=true,!vm.neon.tech/name"
    await listed(place.client, PODS, selector)
    assert [httpx.URL(asked).params["labelSelector"] for asked in place.asked] == [selector]
    names = {VIRTUAL_MACHINES: ["db"], PODS: ["pg-1"]}
    monkeypatch.setattr(
        completion, "_names_of", lambda _, kind, *__: [ObjectName("shop", each) for each in names[kind]]
    )
    typed = typer.Context(typer.main.get_command(app(["explain"])))
    typed.params = {"namespace": "shop"}
    assert complete_database(typed, "") == ["db", "pod/pg-1"]
