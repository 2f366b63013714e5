"""Objects that no field can be trusted of: the cluster's controllers leave them, name them and serve all others."""

from __future__ import annotations

import os
from random import Random
from typing import Any, Final

import pytest

from deploy.local.apiserver.storage.database import Key
from protocol.kubernetes.objects import text
from tests.local.apiserver.bad_input import changed, seed_of
from tests.neonvm.runtime_fixture import RuntimeFixture

OBJECTS: Final = int(os.environ.get("AUTOSCALE_FUZZ_OBJECTS", "120"))
NEON: Final = "vm.neon.tech"
KINDS: Final = {
    "pods": "Pod",
    "nodes": "Node",
    f"virtualmachines.{NEON}": "VirtualMachine",
    f"virtualmachinemigrations.{NEON}": "VirtualMachineMigration",
}


def put(runtime: RuntimeFixture, resource: str, name: str, body: Any) -> None:
    """Stores ``body`` past every check of the API server, as an older server or another version may have done."""
    namespace = "" if resource == "nodes" else "default"
    given = body if isinstance(body, dict) else {}
    metadata = given.get("metadata") if isinstance(given.get("metadata"), dict) else {}
    known = {"name": name, "namespace": namespace, "uid": f"uid-{name}", "creationTimestamp": "2026-01-01T00:00:00Z"}
    head = {"apiVersion": "v1", "kind": KINDS[resource]}
    stored = {**given, **head, "metadata": {**sane(metadata), **known}}
    runtime.api.server.api.store.create(Key(resource, namespace, name), stored)


def sane(metadata: Any) -> dict[str, Any]:
    """Restrict to objects that the API server itself can read; these tests are about its clients."""
    return {key: value for key, value in metadata.items() if key in {"labels", "annotations"}}


@pytest.mark.parametrize("seed", range(2))
async def test_hostile_objects_do_not_stop_vms(runtime: RuntimeFixture, seed: int) -> None:
    random = Random(seed)
    runtime.api.hide_errors()  # what the API server makes of them is not the question here
    for number in range(OBJECTS // 2):
        resource = random.choice(sorted(KINDS))
        body = changed(random, seed_of(KINDS[resource]))
        spec = body.get("spec") if isinstance(body, dict) else None
        if resource == "pods" and random.random() < 0.7 and isinstance(spec, dict):
            spec |= random.choice([{"nodeName": "n1"}, {"schedulerName": "autoscale-scheduler"}])
            body["metadata"] = {"labels": {"vm.neon.tech/name": f"bad-{random.randrange(OBJECTS)}"}}
        put(runtime, resource, f"bad-{number}", body)
        if number % 10 == 0:
            await runtime.settle()
    await runtime.pass_time(5)
    await runtime.create_vm("Never")
    await runtime.pass_time(3)
    status = await runtime.status()
    assert (status["phase"], text(status, "podName") in runtime.guests.running) == ("Running", True)
    assert runtime.is_up


async def test_undecodable_object_is_reported_and_skipped(runtime: RuntimeFixture) -> None:
    runtime.api.garble("bad")
    put(runtime, f"virtualmachines.{NEON}", "bad", seed_of("VirtualMachine"))
    pod = await runtime.run_vm("Never")
    assert [line.partition(":")[0] for line in runtime.controllers.unreadable()] == ["default/bad"]
    assert (runtime.guests.running, runtime.is_up) == ([pod], True)
