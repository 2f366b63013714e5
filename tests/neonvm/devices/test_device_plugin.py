"""The device plugin with a kubelet that restarts: the node keeps offering devices, and pods get those available."""

from __future__ import annotations

import asyncio
import gc
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import grpc
import pytest

from deploy.neonvm.devices.__main__ import parser
from deploy.neonvm.devices.plugin import Plugin, grant_all_devices, present_devices
from deploy.neonvm.devices.registration import CHECK_EVERY, UNWATCHED, Registration
from deploy.neonvm.devices.telemetry import DeviceTelemetry
from protocol.units import Seconds
from tests.deploy.manifests import container
from tests.fake_clock import FakeClock
from tests.neonvm.devices.fake_kubelet import FakeKubelet

RESOURCE = "autoscaling.neon.tech/guest-devices"
ENDPOINT = "autoscaling.neon.tech_guest-devices.sock"
COUNT = 3
PATIENCE = 5000
"""Milliseconds, on a machine that is busy."""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path, because a socket's path has at most 107 bytes."""
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


class PatientClock(FakeClock):
    """A clock that waits while gRPC is working, which takes real time."""

    is_waited_for = False

    async def sleep(self, duration: Seconds) -> None:
        self.is_waited_for = True
        try:
            await super().sleep(duration)
        finally:
            self.is_waited_for = False


@dataclass
class Node:
    """A node's plugin at work."""

    clock: PatientClock
    registration: Registration
    telemetry: DeviceTelemetry
    devices: list[str]

    async def until(self, holds: Callable[[], bool]) -> None:
        for _ in range(PATIENCE):
            if holds():
                return
            if self.clock.is_waited_for:
                await self.clock.advance(CHECK_EVERY)
            await asyncio.sleep(0.001)  # gRPC works in threads of its own
        raise AssertionError("never")


@asynccontextmanager
async def node(folder: Path, *devices: str) -> AsyncIterator[Node]:
    clock, there = PatientClock(), list(devices)
    telemetry = DeviceTelemetry((), lambda: there, lambda: registration.is_registered)
    plugin = Plugin(COUNT, partial(grant_all_devices, lambda: there, telemetry))
    registration = Registration(RESOURCE, folder, plugin, clock, telemetry.registered)
    work = asyncio.create_task(registration.run())
    try:
        yield Node(clock, registration, telemetry, there)
    finally:
        work.cancel()
        await asyncio.wait((work,))


async def test_device_plugin_offers_present_devices(folder: Path) -> None:
    async with FakeKubelet(folder) as kubelet, node(folder, "/dev/kvm") as made:
        await made.until(lambda: kubelet.offered == {RESOURCE: COUNT})
        await made.until(lambda: made.registration.is_registered)
        kvm, vhost = ("/dev/kvm", "/dev/kvm", "rw"), ("/dev/vhost-net", "/dev/vhost-net", "rw")
        assert await kubelet.allocate(ENDPOINT, ["place-1"], ["place-0"]) == [[kvm], [kvm]]
        made.devices.append("/dev/vhost-net")
        assert await kubelet.allocate(ENDPOINT, ["place-2"]) == [[kvm, vhost]]
        made.devices.clear()
        assert await kubelet.allocate(ENDPOINT, ["place-2"]) == [[]]
        page = made.telemetry.page().decode()
        assert "autoscale_devices_allocations_total 4.0" in page
        assert "autoscale_devices_registered 1.0" in page


async def test_what_follows_is_no_garbage(folder: Path) -> None:
    async with FakeKubelet(folder) as kubelet, node(folder) as made:
        await made.until(lambda: made.registration.is_registered)
        gc.collect()
        await asyncio.sleep(0.01)
        assert made.registration.is_registered
        assert kubelet.offered == {RESOURCE: COUNT}


async def test_a_kubelet_that_starts_anew_gets_another_registration(folder: Path) -> None:
    async with node(folder) as made:
        for _ in range(2):
            async with FakeKubelet(folder) as kubelet:
                await made.until(lambda: kubelet.offered == {RESOURCE: COUNT})
            await made.until(lambda: not made.registration.is_registered)


async def test_a_socket_that_was_removed_is_made_anew(folder: Path) -> None:
    async with FakeKubelet(folder) as kubelet, node(folder) as made:
        await made.until(lambda: made.registration.is_registered)
        (folder / ENDPOINT).unlink()
        await made.until(lambda: len(kubelet.registered) >= 2 and kubelet.offered == {RESOURCE: COUNT})


async def test_registers_again_after_kubelet_restart(folder: Path) -> None:
    async with FakeKubelet(folder, follows=False) as kubelet, node(folder) as made:
        await made.until(lambda: len(kubelet.registered) == 1)
        began = made.clock.now()
        await made.until(lambda: len(kubelet.registered) == 2)
        assert UNWATCHED < made.clock.now() - began < UNWATCHED + 4 * CHECK_EVERY
        assert not made.registration.is_registered


async def test_refused_registration_backs_off(folder: Path) -> None:
    async with FakeKubelet(folder, refuses="another plugin has it"), node(folder) as made:

        def failed() -> int:
            return int(made.telemetry.registry.get_sample_value(NAME, {"outcome": "failed"}) or 0)

        await made.until(lambda: failed() == 3)
        assert made.clock.now() >= 1000.0 + 1.0 + 2.0
        assert not made.registration.is_registered


NAME = "autoscale_devices_registrations_total"


async def test_at_its_end_the_node_offers_nothing(folder: Path) -> None:
    async with FakeKubelet(folder) as kubelet:
        async with node(folder) as made:
            await made.until(lambda: kubelet.offered == {RESOURCE: COUNT})
        for _ in range(PATIENCE):
            if not kubelet.offered:
                break
            await asyncio.sleep(0.001)
        assert (kubelet.offered, (folder / ENDPOINT).exists()) == ({}, False)


async def test_a_request_that_cannot_be_read_is_refused(folder: Path) -> None:
    async with FakeKubelet(folder) as kubelet, node(folder) as made:
        await made.until(lambda: made.registration.is_registered)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await kubelet.call(ENDPOINT, "Allocate", b"\xff")
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_a_device_is_there_when_its_driver_is(tmp_path: Path) -> None:
    (tmp_path / "kvm").mkdir()
    assert present_devices(["kvm", "vhost-net"], tmp_path) == ["/dev/kvm"]


def test_the_manifests_ask_for_what_the_plugin_offers() -> None:
    offered = parser().parse_args(container("neonvm-devices")["args"]).resource
    assert f"--guest-resource={offered}" in container("neonvm-controller")["args"]
    assert offered == RESOURCE
