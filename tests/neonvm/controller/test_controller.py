"""The controller with the real API server in process: what it does with a VirtualMachine."""

import json
from collections.abc import AsyncIterator, Callable

import httpx2 as httpx
import pytest

from deploy.kube.client import ApiClient
from deploy.kube.events import EventRecorder
from deploy.kube.informer import Informer
from deploy.local.apiserver.apimachinery.environment import system_environment
from deploy.local.apiserver.server import admin_tokens, build
from deploy.neonvm.controller.controller import NeonVmController
from deploy.neonvm.dependencies import ControllerDependencies, HostedGuest
from deploy.neonvm.objects.boot_record import boot_record
from deploy.neonvm.objects.pods import with_agent
from deploy.neonvm.ports import (
    GuestError,
    GuestPhase,
    GuestState,
    PodRole,
)
from deploy.neonvm.runner.resizer import Resizer
from deploy.neonvm.transfer_terms import TransferInfo, TransferLimits
from protocol.guest.sleep import sleep_order_patch
from protocol.kubernetes.api import ApiRefusedError
from protocol.kubernetes.objects import Json, annotations_of, child, items, name_of, text, uid_of
from protocol.kubernetes.refusals import RefusalKind
from protocol.kubernetes.resources import CUSTOM_RESOURCE_DEFINITIONS, MIGRATIONS, PODS, VIRTUAL_MACHINES
from protocol.kubernetes.timestamps import timestamp
from protocol.messages import ObjectName
from protocol.names import ANNOTATION_USAGE
from protocol.runtime.kubernetes.http_api import HttpApi
from protocol.units import Bytes, MilliCpu, Resources
from tests.fake_clock import FakeClock
from tests.neonvm.runner.test_resizer import ObedientGuest
from tests.neonvm.runtime_fixture import definition
from tests.neonvm.sample_objects import WANTED, virtual_machine

DB = ObjectName("default", "db")


class FakeGuestHost:
    """The kubelet's side: guests by pod."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self.guests: dict[ObjectName, Resizer] = {}
        self.released: list[str] = []

    def run(self, pod: ObjectName, cpu: str, mem: str) -> None:
        resizer = Resizer(ObedientGuest(), Resources.parse(cpu, mem), self._clock, lambda: None)
        resizer.state = GuestState(GuestPhase.RUNNING, MilliCpu.parse(cpu), Bytes.parse(mem))
        self.guests[pod] = resizer

    def guest(self, pod: Json | None) -> HostedGuest:
        resizer = self.guests.get(name_of(pod or {}))
        return HostedGuest(resizer, PodRole.RUNNING) if resizer else HostedGuest()

    async def send(
        self, source: ObjectName, target: ObjectName, limits: TransferLimits, progress: Callable[[TransferInfo], None]
    ) -> TransferInfo:
        raise GuestError("nothing is moved here")

    async def vm_address(self, vm: Json) -> str:
        return "10.1.0.1"

    async def release_vm(self, vm: ObjectName, uid: str) -> None:
        self.released.append(str(vm))


class Fence(httpx.ASGITransport):
    """A connection to the API server on which an older admission policy may refuse the pods' content."""

    refuses = False
    drops = ""
    writes = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.writes += request.method != "GET"
        if self.drops and request.method == "PATCH" and request.url.path.endswith("/db/status"):
            body = json.loads(await request.aread())
            body["status"].pop(self.drops, None)
            headers = {key: value for key, value in request.headers.items() if key != "content-length"}
            request = httpx.Request("PATCH", request.url, headers=headers, json=body)
        if (
            self.refuses
            and request.method == "PATCH"
            and request.url.path.startswith("/api/v1/namespaces/default/pods/")
        ):
            said = {"kind": "Status", "status": "Failure", "reason": "Forbidden", "code": 403, "message": "no"}
            return httpx.Response(403, json=said)
        return await super().handle_async_request(request)


class Site:
    """An API server in this process, a controller, and watches that a test drives by hand."""

    def __init__(self, client: ApiClient, fence: Fence) -> None:
        self.client, self.clock, self.fence = client, FakeClock(), fence
        self.host = FakeGuestHost(self.clock)
        self._names = iter("abcdefgh")
        self._vms, self._pods, self._migrations = self._caches = self._new_caches()
        self._controller = self._new_controller(self._caches)

    def _new_caches(self) -> tuple[Informer, Informer, Informer]:
        vms, pods, migrations = (
            Informer(self.client, kind, self.clock) for kind in (VIRTUAL_MACHINES, PODS, MIGRATIONS)
        )
        return vms, pods, migrations

    def _new_controller(self, caches: tuple[Informer, Informer, Informer]) -> NeonVmController:
        vms, pods, migrations = caches
        return NeonVmController(
            ControllerDependencies(
                client=self.client,
                vms=vms,
                pods=pods,
                migrations=migrations,
                guest_host=self.host,
                events=EventRecorder(self.client, "test", self.clock),
                clock=self.clock,
                suffix=lambda: next(self._names),
                form=with_agent,
            )
        )

    async def falling_behind(self) -> NeonVmController:
        """Another replica's controller: it sees the present state, and no later change."""
        caches = self._new_caches()
        for cache in caches:
            await cache.refresh()
        return self._new_controller(caches)

    async def turn(self, times: int = 1) -> Json:
        """Deliver pending watch events and run the controller. Returns the VM afterwards."""
        for _ in range(times):
            for cache in self._caches:
                await cache.refresh()
            await self._controller.reconcile(DB)
        return await self.vm()

    async def vm(self) -> Json:
        return await self.client.get(VIRTUAL_MACHINES, DB)

    async def pods(self) -> list[Json]:
        return (await self.client.list(PODS)).objects

    async def run_pod(self, cpu: str = "2", mem: str = "2Gi") -> ObjectName:
        """The VM's pod runs, and its guest has this size."""
        (pod,) = await self.pods()
        name = ObjectName("default", text(pod, "metadata", "name"))
        status = {"phase": "Running", "podIP": "10.0.0.9"}
        await self.client.merge_patch(PODS, name, {"status": status}, "status")
        self.host.run(name, cpu, mem)
        return name

    async def fail_pod(self, name: ObjectName) -> None:
        del self.host.guests[name]
        status = {"phase": "Failed", "reason": "GuestEnded", "message": "QEMU died"}
        await self.client.merge_patch(PODS, name, {"status": status}, "status")


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    server = build(None, admin_tokens("secret"), system_environment())
    fence = Fence(server.app)
    http = httpx.AsyncClient(transport=fence, base_url="http://api", headers={"Authorization": "Bearer secret"})
    async with ApiClient(HttpApi(http, lambda: None)) as client:
        for name in ("virtualmachines.yaml", "virtualmachinemigrations.yaml"):
            await client.create(CUSTOM_RESOURCE_DEFINITIONS, "", definition(name))
        made = virtual_machine()
        await client.create(VIRTUAL_MACHINES, "default", {**made, "metadata": {"name": "db", "labels": {"a": "b"}}})
        yield Site(client, fence)
    server.close()


async def test_repeated_reconciles_create_one_pod(site: Site) -> None:
    await site.turn(6)
    (pod,) = await site.pods()
    vm = await site.vm()
    assert text(vm, "status", "podName") == text(pod, "metadata", "name") == "db-a"
    assert child(pod, "metadata", "labels") == {"app.kubernetes.io/name": "NeonVM", "a": "b", "vm.neon.tech/name": "db"}
    assert [text(each, "uid") for each in items(pod, "metadata", "ownerReferences")] == [uid_of(vm)]
    assert text(pod, "spec", "schedulerName") == "autoscale-scheduler"


async def test_a_stale_look_never_names_a_second_pod(site: Site) -> None:
    await site.turn(1)
    behind = await site.falling_behind()
    await site.turn(1)
    with pytest.raises(ApiRefusedError) as stale:
        await behind.reconcile(DB)
    assert stale.value.kind is RefusalKind.CONFLICT
    assert text(await site.vm(), "status", "podName") == "db-a"


async def test_status_and_usage_report_guest_size(site: Site) -> None:
    await site.turn(3)
    name = await site.run_pod("1", "2Gi")
    vm = await site.turn(2)
    status = {key: text(vm, "status", key) for key in ("phase", "cpus", "memorySize", "podIP", "extraNetIP")}
    assert status == {
        "phase": "Scaling",
        "cpus": "1",
        "memorySize": "2Gi",
        "podIP": "10.0.0.9",
        "extraNetIP": "10.1.0.1",
    }
    assert site.host.guests[name]._target == WANTED
    assert annotations_of((await site.pods())[0])[ANNOTATION_USAGE] == '{"cpu": "1", "memory": "2Gi"}'


async def test_nothing_is_written_twice_while_watches_lag(site: Site) -> None:
    """The controller remembers its writes before a watch shows them."""
    await site.turn(3)
    await site.run_pod("1", "2Gi")
    await site.turn()
    before = site.fence.writes
    for _ in range(3):
        await site._controller.reconcile(DB)
    assert site.fence.writes == before


async def test_pending_pod_is_recreated_smaller(site: Site) -> None:
    await site.turn(4)
    (before,) = await site.pods()
    await site.client.merge_patch(VIRTUAL_MACHINES, DB, {"spec": {"guest": {"cpus": {"use": 1}}}})
    await site.turn(4)
    (after,) = await site.pods()
    made = boot_record(after)
    assert made is not None
    assert (str(made.use), uid_of(after) != uid_of(before)) == ("1 cpu, 2Gi", True)


@pytest.mark.parametrize("runs", [True, False])
async def test_pod_follows_original_schedulers_annotation(site: Site, *, runs: bool) -> None:
    """That scheduler waits for it before it answers an agent, and writes it every second until then."""
    await site.turn(3)
    if runs:
        await site.run_pod()
        await site.turn(2)
    (before,) = await site.pods()
    unit = {"autoscaling.neon.tech/scaling-unit": '{"vCPUs":"250m","mem":"1Gi"}'}
    change: Json = {"metadata": {"annotations": unit}, "spec": {"guest": {"cpus": {"use": 3}}}}
    await site.client.merge_patch(VIRTUAL_MACHINES, DB, change)
    await site.turn(2)
    (pod,) = await site.pods()
    said = annotations_of(pod)["vm.neon.tech/resources"]
    assert '"use":3}' in said
    assert annotations_of(pod) == {**annotations_of(before), **unit, "vm.neon.tech/resources": said}
    await site.turn(2)
    assert (await site.pods()) == [pod], "and nothing is written where nothing has changed"


async def test_refused_pod_annotation_blocks_nothing_else(site: Site) -> None:
    await site.turn(3)
    await site.run_pod()
    await site.turn(2)
    site.fence.refuses = True
    await site.client.merge_patch(VIRTUAL_MACHINES, DB, {"spec": {"guest": {"cpus": {"use": 3}}}})
    with pytest.raises(ApiRefusedError, match="no"):
        await site.turn(1)
    assert text(await site.vm(), "status", "phase") == "Scaling"
    await site.client.delete(VIRTUAL_MACHINES, DB)
    await site.turn(1)
    assert await site.pods() == []


async def test_revision_is_confirmed_once_applied(site: Site) -> None:
    await site.turn(3)
    await site.run_pod()
    named = {"revision": {"value": 7, "flags": 0}, "updatedAt": "2026-01-01T00:00:00Z"}
    await site.client.merge_patch(VIRTUAL_MACHINES, DB, {"spec": {"targetRevision": named}})
    now = timestamp(site.clock.wall())
    vm = await site.turn(2)
    assert child(vm, "status", "currentRevision") == {"revision": {"value": 7, "flags": 0}, "updatedAt": now}
    await site.clock.advance(5.0)
    assert (await site.turn(2)) == vm, "said once"


async def test_dropped_machine_is_not_written_again(site: Site) -> None:
    """NeonVM's own CRD lacks the field: otherwise every poll would write to every VM of a fleet."""
    site.fence.drops = "machine"
    await site.turn(3)
    await site.run_pod()
    vm = await site.turn(3)
    assert (text(vm, "status", "phase"), "machine" in child(vm, "status")) == ("Running", False)
    before = site.fence.writes
    assert await site.turn(3) == vm
    assert site.fence.writes == before
    site.fence.drops = ""
    await site.client.merge_patch(VIRTUAL_MACHINES, DB, {"spec": {"guest": {"cpus": {"use": 3}}}})
    assert child(await site.turn(1), "status", "machine"), "the definition is ours by now"


async def test_dropped_refusal_to_sleep_is_said_once(site: Site) -> None:
    site.fence.drops = "sleep"
    await site.turn(3)
    await site.run_pod()
    await site.client.merge_patch(VIRTUAL_MACHINES, DB, sleep_order_patch("a"))
    vm = await site.turn(2)
    before = site.fence.writes
    assert (await site.turn(3), site.fence.writes) == (vm, before)


async def test_dead_guest_restarts_after_backoff(site: Site) -> None:
    await site.turn(3)
    name = await site.run_pod()
    await site.turn(2)
    await site.fail_pod(name)
    assert text(await site.turn(2), "status", "phase") == "Failed"
    assert await site.pods() == []
    assert text(await site.turn(2), "status", "podName") == "db-a"
    await site.clock.advance(1.1)
    vm = await site.turn(2)
    assert (text(vm, "status", "podName"), child(vm, "status")["restartCount"]) == ("db-b", 1)


async def test_deleted_vm_removes_pod_and_releases_all(site: Site) -> None:
    await site.turn(3)
    await site.client.delete(VIRTUAL_MACHINES, DB)
    await site.turn(1)
    assert await site.pods() == []
    await site._pods.refresh()
    await site._controller.reconcile(DB)
    with pytest.raises(ApiRefusedError) as gone:
        await site.vm()
    assert (gone.value.kind, site.host.released) == (RefusalKind.NOT_FOUND, ["default/db"])


async def test_deleted_vm_is_forgotten(site: Site) -> None:
    """Each deleted VM once left an entry for as long as the controller ran."""
    await site.turn(3)
    await site.client.delete(VIRTUAL_MACHINES, DB)
    await site.turn(1)
    await site._pods.refresh()
    for _ in range(2):  # the watch shows the VM's end later than its own write
        await site._controller.reconcile(DB)
    await site._vms.refresh()
    assert site._controller._restarts == {}


async def test_api_rejects_use_outside_bounds(site: Site) -> None:
    with pytest.raises(ApiRefusedError) as refused:
        await site.client.merge_patch(VIRTUAL_MACHINES, DB, {"spec": {"guest": {"memorySlots": {"use": 99}}}})
    assert refused.value.kind is RefusalKind.INVALID
