"""The network program as a device plugin: the kubelet assigns directories, and says which pod owns each."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.neonvm.devices.plugin import Plugin
from deploy.neonvm.devices.wire import MESSAGES as DEVICE_MESSAGES
from deploy.neonvm.devices.wire import MalformedPluginMessageError, requested_devices
from deploy.neonvm.overlay.taps import (
    LIST,
    MESSAGES,
    TapSockets,
    grant_sockets,
    pod_with_device,
    pods_with_device,
)
from deploy.neonvm.ports import NetworkError
from protocol.messages import ObjectName
from tests.neonvm.devices.fake_kubelet import FakeKubelet

RESOURCE = "autoscaling.neon.tech/flat-network"


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path, because a socket's path has at most 107 bytes."""
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


@asynccontextmanager
async def pod_resources(folder: Path, answer: bytes) -> AsyncIterator[None]:
    """The kubelet's own socket."""

    async def listed(_: bytes, __: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        return answer

    service, _, method = LIST[1:].partition("/")
    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(listed)
    server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
    server.add_insecure_port(f"unix:{folder / 'kubelet.sock'}")
    await server.start()
    try:
        yield
    finally:
        await server.stop(None)


def listing(*pods: tuple[str, str, str, str]) -> bytes:
    """Pods by namespace, name, resource and place."""
    made = MESSAGES["ListPodResourcesResponse"]()
    for namespace, name, resource, place in pods:
        pod = made.pod_resources.add(namespace=namespace, name=name)  # type: ignore[attr-defined]
        pod.containers.add(name="agent")
        pod.containers.add(name="neonvm-runner").devices.add(resource_name=resource, device_ids=["x", place])
    return made.SerializeToString()


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        ([("shop", "db-1", RESOURCE, "place-3"), ("shop", "db-2", RESOURCE, "place-4")], ObjectName("shop", "db-1")),
        ([("shop", "db-1", "other", "place-3")], None),
        ([("shop", "db-1", RESOURCE, "place-33")], None),
        ([("shop", "db-1", RESOURCE, "place-3"), ("bank", "db-1", RESOURCE, "place-3")], None),
        ([], None),
    ],
)
async def test_device_belongs_to_kubelets_pod(
    folder: Path, pods: list[tuple[str, str, str, str]], expected: ObjectName | None
) -> None:
    async with pod_resources(folder, listing(*pods)):
        assert await pod_with_device(folder, "place-3") == expected


@given(st.binary(max_size=200))
def test_garbage_of_a_kubelet_is_refused_or_empty(answer: bytes) -> None:
    with suppress(NetworkError):
        assert all(isinstance(each, ObjectName) for each in pods_with_device(answer, RESOURCE, "place-3"))
    with suppress(MalformedPluginMessageError):
        assert all(isinstance(each, list) for each in requested_devices(answer))


async def test_kubelet_that_does_not_answer_is_named(folder: Path) -> None:
    with pytest.raises(NetworkError, match="cannot ask the kubelet which pod has place-3: UNAVAILABLE"):
        await pod_with_device(folder, "place-3")
    async with pod_resources(folder, b"\xff"):
        with pytest.raises(NetworkError, match="expected a ListPodResourcesResponse"):
            await pod_with_device(folder, "place-3")


async def test_pod_folder_is_read_only(folder: Path) -> None:
    async def serve(_: str, __: socket.socket) -> None: ...

    sockets = TapSockets(folder / "flat", serve)
    sockets.restore()
    plugin = Plugin(3, partial(grant_sockets, sockets))
    server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
    server.add_generic_rpc_handlers((plugin.handler(),))
    server.add_insecure_port(f"unix:{folder / 'plugin.sock'}")
    await server.start()
    kubelet = FakeKubelet(folder)
    asked = DEVICE_MESSAGES["AllocateRequest"]()
    asked.container_requests.add(devices_ids=["place-1"])  # type: ignore[attr-defined]
    asked.container_requests.add()  # type: ignore[attr-defined]
    answer = await kubelet.call("plugin.sock", "Allocate", asked.SerializeToString())
    found = DEVICE_MESSAGES["AllocateResponse"].FromString(answer).container_responses  # type: ignore[attr-defined]
    mounts = [[(each.container_path, each.host_path, each.read_only) for each in one.mounts] for one in found]
    assert mounts == [[("/run/flat", str(folder / "flat" / "place-1"), True)], []]
    asked.container_requests[1].devices_ids.append("../place-1")  # type: ignore[attr-defined]
    with pytest.raises(grpc.aio.AioRpcError, match="invalid device ID"):
        await kubelet.call("plugin.sock", "Allocate", asked.SerializeToString())
    sockets.close()
    await server.stop(None)
