"""The API client: its requests, and the handling of refusals, timeouts and invalid responses."""

import json

import httpx2 as httpx
import pytest

from deploy.kube.client import ApiClient
from protocol.kubernetes.api import ApiRefusedError, ApiUnknownError
from protocol.kubernetes.refusals import RefusalKind
from protocol.kubernetes.resources import NODES, PODS, VIRTUAL_MACHINES
from protocol.messages import ObjectName
from protocol.runtime.kubernetes.http_api import HttpApi

POD = ObjectName("default", "a")


def client(answer: httpx.Response | Exception, sent: list[httpx.Request] | None = None) -> ApiClient:
    def handle(request: httpx.Request) -> httpx.Response:
        if sent is not None:
            sent.append(request)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return ApiClient(
        HttpApi(httpx.AsyncClient(transport=httpx.MockTransport(handle), base_url="http://api"), lambda: None)
    )


async def test_every_call_goes_where_kubernetes_expects_it() -> None:
    sent: list[httpx.Request] = []
    api = client(httpx.Response(200, json={"items": []}), sent)
    await api.get(PODS, POD)
    await api.list(VIRTUAL_MACHINES)
    await api.list(PODS, "default", "app=x")
    await api.create(NODES, "", {"kind": "Node"})
    await api.merge_patch(VIRTUAL_MACHINES, POD, {"status": {}}, "status")
    await api.delete(PODS, POD, "uid", grace=0)
    assert [f"{each.method} {each.url.raw_path.decode()}" for each in sent] == [
        "GET /api/v1/namespaces/default/pods/a",
        "GET /apis/vm.neon.tech/v1/virtualmachines",
        "GET /api/v1/namespaces/default/pods?labelSelector=app%3Dx",
        "POST /api/v1/nodes",
        "PATCH /apis/vm.neon.tech/v1/namespaces/default/virtualmachines/a/status",
        "DELETE /api/v1/namespaces/default/pods/a",
    ]
    assert sent[4].headers["content-type"] == "application/merge-patch+json"
    options = json.loads(sent[5].content)
    assert (options["preconditions"], options["gracePeriodSeconds"]) == ({"uid": "uid"}, 0)


async def test_a_refusal_carries_the_servers_reason() -> None:
    with pytest.raises(ApiRefusedError, match=r"no such pod \(404\)") as refused:
        await client(httpx.Response(404, json={"reason": "NotFound", "message": "no such pod"})).get(PODS, POD)
    assert (refused.value.kind, refused.value.refusal.reason) == (RefusalKind.NOT_FOUND, "NotFound")


async def test_non_json_refusal_is_shown_verbatim() -> None:
    with pytest.raises(ApiRefusedError, match=r"proxy says no \(403\)"):
        await client(httpx.Response(403, text="proxy says no")).get(PODS, POD)


async def test_a_server_in_trouble_gave_no_usable_answer() -> None:
    with pytest.raises(ApiUnknownError, match="502: bad gateway"):
        await client(httpx.Response(502, text="bad gateway")).get(PODS, POD)


@pytest.mark.parametrize("answer", [httpx.ConnectError("refused"), httpx.Response(200, text="nonsense")])
async def test_silence_and_nonsense_are_no_answer(answer: httpx.Response | Exception) -> None:
    with pytest.raises(ApiUnknownError):
        await client(answer).get(PODS, POD)
