"""Every listener describes itself at ``/openapi.json``, hot paths included, without contacting another host."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.fake_clock import FakeClock
from tests.scheduler_plugin.fake_cluster import NODES, PODS, VMS, FakeCluster
from tests.scheduler_plugin.objects import node, vm, vm_pod
from tests.scheduler_plugin.running import running

LISTENERS = {
    "agents": {"/": "post", "/permits": "post"},
    "extender": {"/filter": "post", "/prioritize": "post", "/bind": "post", "/preempt": "post"},
    "probes": dict.fromkeys(
        ("/metrics", "/healthz", "/readyz", "/nodes", "/settings", "/explain/{namespace}/{vm}"), "get"
    ),
}


def cluster() -> FakeCluster:
    found = FakeCluster()
    for path, obj in ((NODES, node("n1")), (VMS, vm("db")), (PODS, vm_pod("db", "n1"))):
        found.put(path, obj)
    return found


@pytest.mark.parametrize("listener", LISTENERS)
async def test_documented_routes_and_schemas_exist(listener: str) -> None:
    async with running(cluster(), FakeClock()) as scheduler:
        page = (await scheduler.client.get(f"http://{listener}/openapi.json")).json()
    assert {path: next(iter(methods)) for path, methods in page["paths"].items()} == LISTENERS[listener]
    schemas = page.get("components", {}).get("schemas", {})
    named = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(page)))
    assert named <= set(schemas)
    assert "http" not in json.dumps(page)


async def test_no_external_scripts() -> None:
    async with running(cluster(), FakeClock()) as scheduler:
        for listener in LISTENERS:
            for path in ("docs", "redoc"):
                assert (await scheduler.client.get(f"http://{listener}/{path}")).status_code == 404


def fits(value: Any, schema: Any, schemas: Any) -> bool:
    """True if an answer has the fields of its schema and no others."""
    schema = schemas[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
    if "anyOf" in schema:
        return any(fits(value, one, schemas) for one in schema["anyOf"])
    if schema.get("type") == "array":
        return isinstance(value, list) and all(fits(each, schema["items"], schemas) for each in value)
    if schema.get("type") != "object" or "properties" not in schema:
        return True
    properties = schema["properties"]
    return (
        isinstance(value, dict)
        and value.keys() == properties.keys()
        and all(fits(each, properties[key], schemas) for key, each in value.items())
    )


@pytest.mark.parametrize(("path", "said"), [("/nodes", "nodes"), ("/explain/{namespace}/{vm}", "explain/default/db")])
async def test_answers_match_documented_schema(path: str, said: str) -> None:
    async with running(cluster(), FakeClock()) as scheduler:
        page = (await scheduler.client.get("http://probes/openapi.json")).json()
        answer = (await scheduler.probe(said)).json()
    schema = page["paths"][path]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
    assert fits(answer, schema, page["components"]["schemas"])
    assert not fits({**answer, "more": 1}, schema, page["components"]["schemas"])


async def test_overlong_name_is_client_error() -> None:
    async with running(cluster(), FakeClock()) as scheduler:
        assert (await scheduler.probe("explain/default/" + "x" * 258)).status_code == 422
