"""For any input, the API server responds with 2xx or 4xx, keeps its objects readable and keeps running."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from random import Random
from typing import Any, Final

import httpx2 as httpx
import pytest

from deploy.local.apiserver.apimachinery.environment import system_environment
from deploy.local.apiserver.server import ApiServer, admin_tokens, build
from deploy.local.cluster.content import local_crds
from tests.local.apiserver.bad_input import PATCHES, REQUESTS, SEEDS, BadRequest, bad_requests

GENERATED: Final = int(os.environ.get("AUTOSCALE_FUZZ_REQUESTS", "600"))
PODS: Final = "/api/v1/namespaces/default/pods"
VMS: Final = "/apis/vm.neon.tech/v1/namespaces/default/virtualmachines"
DEFINITIONS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


class Served:
    """An API server in this process, with the definitions of VMs and one object of most kinds."""

    def __init__(self) -> None:
        self.server: ApiServer = build(None, admin_tokens("t"), system_environment())
        transport = httpx.ASGITransport(self.server.app)
        self.http = httpx.AsyncClient(transport=transport, base_url="http://api", headers={"Authorization": "Bearer t"})

    async def define(self) -> None:
        for definition in local_crds():
            assert (await self.http.post(DEFINITIONS, json=definition)).status_code == 201

    async def seed(self) -> None:
        for path, body in SEEDS:
            await self.http.post(path, json=body)
        self.collect()

    async def send(self, bad: BadRequest) -> httpx.Response:
        headers = {"Content-Type": bad.content_type, "Accept": bad.accept}
        return await self.http.request(bad.method, bad.path, content=bad.body, headers=headers, params=bad.query)

    def collect(self) -> None:
        for _ in range(500):
            if self.server.garbage_collector.idle:
                return
            self.server.garbage_collector.step()


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    served = Served()
    await served.define()
    await served.seed()
    yield served
    await served.http.aclose()
    served.server.close()


def other_definition() -> Any:
    """A CRD of another kind, to be changed."""
    found = next(each for each in local_crds() if "migrations" in str(each["metadata"]))
    definition = json.loads(json.dumps(found))
    definition["metadata"] = {"name": "others.vm.neon.tech"}
    definition["spec"]["names"] = {"plural": "others", "kind": "Other"}
    return definition


def nested(levels: int) -> bytes:
    return b'{"a":' * levels + b"1" + b"}" * levels


@pytest.mark.parametrize("levels", [129, 1000, 3000, 100_000])
async def test_too_deep_object_is_refused(served: Served, levels: int) -> None:
    answer = await served.http.post(PODS, content=nested(levels))
    assert (answer.status_code, answer.json()["reason"]) == (400, "BadRequest")


async def test_an_object_cannot_grow_too_deep_by_patches(served: Served) -> None:
    path, codes = "/metadata/annotations", []
    patch = [{"op": "add", "path": "/spec", "value": json.loads(nested(100))}]
    await served.http.post("/api/v1/namespaces/default/configmaps", json={"metadata": {"name": "deep"}})
    for depth in range(3):
        patch[0]["path"] = "/x" + "/a" * 99 * depth
        answer = await served.http.patch(
            "/api/v1/namespaces/default/configmaps/deep",
            content=json.dumps(patch),
            headers={"Content-Type": "application/json-patch+json"},
        )
        codes.append(answer.status_code)
    assert (codes[0], set(codes[1:]) <= {400, 422}, path) == (200, True, "/metadata/annotations")


@pytest.mark.parametrize(
    "yaml_text",
    [b"a: &a [*a]", b"[" * 3000, b"a: " + b"9" * 5000, b"!!python/object:os.system {}", b"? [a]\n: b", b"\x00", b"- 1"],
)
async def test_yaml_that_is_no_object_is_refused(served: Served, yaml_text: bytes) -> None:
    answer = await served.http.post(PODS, content=yaml_text, headers={"Content-Type": "application/yaml"})
    assert answer.status_code == 400


async def test_yaml_aliases_work_but_bombs_fail(served: Served) -> None:
    path = "/api/v1/namespaces/default/configmaps"
    headers = {"Content-Type": "application/yaml"}
    small = b"metadata: {name: aliased, labels: &both {a: b}, annotations: *both}"
    answer = await served.http.post(path, content=small, headers=headers)
    assert (answer.status_code, answer.json()["metadata"]["annotations"]) == (201, {"a": "b"})
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    answer = await served.http.post(path, content="\n".join(lines).encode(), headers=headers)
    assert (answer.status_code, "with all aliases expanded" in answer.text) == (400, True)


@pytest.mark.parametrize("cpu", ["1e1000000000000000000", "9" * 5000, "-1", "x", "1\n", True, [], 1.5, 10**30])
async def test_invalid_quantity_is_refused(served: Served, cpu: object) -> None:
    vm = await served.http.get(f"{VMS}/db")
    body = vm.json()
    body["spec"]["guest"]["cpus"]["use"] = cpu
    answer = await served.http.put(f"{VMS}/db", json=body)
    assert (answer.status_code, answer.json()["reason"]) == (422, "Invalid")
    assert (await served.http.get(f"{VMS}/db")).json() == vm.json()


@pytest.mark.parametrize("request_", ["1e1000000000000000000", "-", "1x", True, [], {}])
async def test_pod_with_bad_quantities_is_refused(served: Served, request_: object) -> None:
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": request_}}}
    answer = await served.http.post(PODS, json={"metadata": {"name": "x"}, "spec": {"containers": [container]}})
    assert (answer.status_code, "spec.containers[0].resources.requests.cpu" in answer.text) == (400, True)


@pytest.mark.parametrize(
    "selector", [1, {"matchLabels": {"a": {}}}, {"matchExpressions": [{"key": "a", "operator": "In", "values": [{}]}]}]
)
async def test_budget_with_bad_selector_is_refused(served: Served, selector: object) -> None:
    budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
    answer = await served.http.post(budgets, json={"metadata": {"name": "b"}, "spec": {"selector": selector}})
    assert (answer.status_code, "spec.selector" in answer.text) == (400, True)


@pytest.mark.parametrize(
    ("keyword", "value"),
    [
        ("pattern", "["),
        ("pattern", 3),
        ("multipleOf", 0),
        ("minimum", "1"),
        ("required", [1]),
        ("properties", [1]),
        ("items", 1),
        ("enum", "a"),
        ("anyOf", {"a": 1}),
        ("x-kubernetes-validations", [{"message": "no rule"}]),
        ("type", "text"),
    ],
)
async def test_crd_with_bad_schema_is_refused(served: Served, keyword: str, value: object) -> None:
    definition = other_definition()
    version = definition["spec"]["versions"][0]
    version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["odd"] = {keyword: value}
    answer = await served.http.post(DEFINITIONS, json=definition)
    assert (answer.status_code, f"properties[odd].{keyword}" in answer.text) == (422, True)


async def test_patterns_match_linearly_to_the_end(served: Served) -> None:
    definition = other_definition()
    schema: dict[str, Any] = {"type": "object", "properties": {"word": {"type": "string", "pattern": "^(a+)+$"}}}
    definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"] = schema
    assert (await served.http.post(DEFINITIONS, json=definition)).status_code == 201
    others = "/apis/vm.neon.tech/v1/namespaces/default/others"
    for word, code in (("a" * 20_000 + "b", 422), ("aaa\n", 422), ("aaa", 201)):
        answer = await served.http.post(others, json={"metadata": {"name": "o"}, "word": word})
        assert answer.status_code == code


@pytest.mark.parametrize("seed", range(3))
async def test_generated_requests_never_give_5xx(served: Served, seed: int) -> None:
    random, answered = Random(seed), 0
    for number, bad in enumerate(bad_requests(random, GENERATED // 3)):
        answer = await served.send(bad)
        assert answer.status_code < 500, (bad, answer.text)
        answered += 1
        served.collect()
        if number % 60 == 0:
            await served.seed()
    assert answered == GENERATED // 3
    for method, path, _ in REQUESTS:
        if method == "GET":
            assert (await served.http.get(path)).status_code in {200, 404}


def test_every_kind_of_patch_is_generated() -> None:
    kinds = {bad.content_type for bad in bad_requests(Random(1), 600) if bad.method == "PATCH"}
    assert set(PATCHES) <= kinds
