"""A whole cluster of real processes with simulated guests: it works, it survives, and it leaves nothing behind."""

import os
import signal
from pathlib import Path

import httpx2 as httpx
import pytest
from msgspec.structs import replace

from deploy.kube.client import client_from_kubeconfig
from deploy.local.cluster.control import ControlError, ask_cluster
from deploy.local.cluster.control_plane import EXTENDER_PORT
from deploy.local.cluster.folder import AlreadyRunningError, ClusterFolder
from deploy.local.cluster.launch import launch
from deploy.local.cluster.progress import Step, StepFailedError, StepState
from deploy.local.cluster.settings import scheduler_settings
from deploy.local.cluster.spec import ClusterSpec
from deploy.neonvm.addressing import DAEMON_PORT
from deploy.neonvm.network import netns
from protocol.kubernetes.objects import Json, integer, items, name_of, text
from protocol.kubernetes.resources import MIGRATIONS, PODS, VIRTUAL_MACHINES
from protocol.messages import ObjectName
from protocol.names import RUNNER_CONTAINER
from protocol.units import MilliCpu
from tests.examples import THOROUGH
from tests.local.cluster.group_story import a_primary_and_its_replica_stand_apart_and_a_move_ends_nothing
from tests.local.cluster.living import cluster, folder_in, processes_of, seen
from tests.plain_http import plain_client

VM = ObjectName("default", "vm-1")
LIGHT = ClusterSpec(guests="simulated", vms=1, load="idle", network="loopback")


async def ask_to_move(folder: ClusterFolder, name: str, **spec: object) -> None:
    """Asks for the VM to be moved to another node."""
    kind: Json = {"apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachineMigration", "metadata": {"name": name}}
    async with client_from_kubeconfig(folder.kubeconfig) as client:
        await client.create(MIGRATIONS, VM.namespace, {**kind, "spec": {"vmName": VM.name, **spec}})


async def endings(folder: ClusterFolder) -> dict[str, str]:
    """The reason why each migration ended."""
    async with client_from_kubeconfig(folder.kubeconfig) as client:
        found = (await client.list(MIGRATIONS)).objects
    return {name_of(each).name: text(said, "reason") for each in found for said in items(each, "status", "conditions")}


def place(vm: Json) -> str:
    return text(vm, "status", "node")


class ReachedError(Exception):
    """A cluster has come as far as a test wants it."""


def cpus(vm: Json) -> MilliCpu:
    return MilliCpu.parse(text(vm, "status", "cpus") or 0)


def runs(vm: Json) -> bool:
    return bool(cpus(vm)) and text(vm, "status", "phase") in {"Running", "Scaling"}


async def press(folder: ClusterFolder, vm: Json, cores: float) -> None:
    """Put this demand on the VM's guest."""
    exposed = await ask_cluster(folder, "expose", text(vm, "status", "podIP"), DAEMON_PORT)
    async with plain_client(base_url=f"http://127.0.0.1:{exposed.port}") as http:
        (await http.put("/demand", json={"cpu": cores, "mem": "64Mi"})).raise_for_status()


async def bind_without_token(folder: ClusterFolder, host: str) -> int:
    """The response to a local user without a token who tries to bind a pod."""
    body = {"PodName": "p", "PodNamespace": "default", "PodUID": "u", "Node": "node-1"}
    exposed = await ask_cluster(folder, "expose", host, EXTENDER_PORT)
    async with plain_client(base_url=f"http://127.0.0.1:{exposed.port}") as http:
        return (await http.post("/bind", json=body)).status_code


def let_requests_follow(folder: ClusterFolder) -> None:
    """The settings that a cluster which has yet to be made will find."""
    folder.root.mkdir(parents=True)
    folder.scheduler_config.write_text(f"{scheduler_settings()}permits: {{asPodRequests: true}}\n")


async def begin_with(folder: ClusterFolder, requests: Json) -> None:
    """The VM's next pod requests this much; a pod without requests is never resized."""
    async with client_from_kubeconfig(folder.kubeconfig) as client:
        await client.merge_patch(VIRTUAL_MACHINES, VM, {"spec": {"podResources": {"requests": requests}}})


async def requested(folder: ClusterFolder, vm: Json) -> MilliCpu:
    """The CPUs that the VM's pod requests for its guest."""
    async with client_from_kubeconfig(folder.kubeconfig) as client:
        pod = await client.get(PODS, ObjectName(VM.namespace, text(vm, "status", "podName")))
    (runner,) = (each for each in items(pod, "spec", "containers") if text(each, "name") == RUNNER_CONTAINER)
    return MilliCpu.parse(text(runner, "resources", "requests", "cpu"))


async def test_cluster_survives_killed_programs(tmp_path: Path) -> None:
    folder = folder_in(tmp_path, "whole")
    let_requests_follow(folder)
    async with cluster(folder, LIGHT):
        vm = await seen(folder, VM, runs)
        with pytest.raises(AlreadyRunningError):
            await launch(folder, LIGHT, attached=True)
        await press(folder, vm, 3.0)
        assert cpus(await seen(folder, VM, lambda now: cpus(now) >= MilliCpu(3000))) <= MilliCpu(4000)
        answer = await ask_cluster(folder, "status")
        agent = next(part for part in answer.parts if part.name.startswith("agent "))
        assert {"api-server", "scheduler"} < {part.name for part in answer.parts}
        assert await bind_without_token(folder, answer.host) == httpx.codes.UNAUTHORIZED
        os.kill(agent.pid, signal.SIGKILL)
        await begin_with(folder, {"cpu": "100m", "memory": "64Mi"})
        await ask_to_move(folder, "away")
        moved = await seen(folder, VM, lambda now: runs(now) and place(now) != place(vm))
        assert text(moved, "status", "extraNetIP") == text(vm, "status", "extraNetIP")
        await press(folder, moved, 3.9)
        await seen(folder, VM, lambda now: cpus(now) == MilliCpu(4000))
        assert await requested(folder, moved) == MilliCpu(4000)
        await ask_to_move(folder, "slowly", maxBandwidth="1Mi")
        await seen(folder, VM, lambda now: text(now, "status", "phase") == "Migrating")
        owner = folder.owner()
        assert owner is not None
        os.kill(owner, signal.SIGKILL)
    with pytest.raises(ControlError):
        await ask_cluster(folder, "status")
    async with cluster(folder, replace(LIGHT, groups=True)):
        again = await seen(folder, VM, lambda now: runs(now) and integer(now, "status", "restartCount") == 1)
        assert text(again, "status", "podName") != text(vm, "status", "podName")
        assert {"away": "Migrated", "slowly": "RuntimeRestarted"}.items() <= (await endings(folder)).items()
        await a_primary_and_its_replica_stand_apart_and_a_move_ends_nothing(folder)
    assert processes_of(folder) == set()


STEPS = ["network", "guests", "API server", "scheduler", "nodes", "agents"]
INTERRUPTED = STEPS if THOROUGH else ["guests", "scheduler"]
"""The quick suite interrupts before there is any process and when there are some; the story above ends them all."""


async def interrupt(folder: ClusterFolder, spec: ClusterSpec, step: str) -> None:
    """Ends a cluster when it begins ``step``."""

    def watch(said: Step) -> None:
        if (said.name, said.state) == (step, StepState.BEGUN):
            raise ReachedError

    launched = await launch(folder, spec, attached=True)
    try:
        with pytest.raises(ReachedError):
            await launched.follow(watch)
    finally:
        await launched.end()


@pytest.mark.parametrize("step", INTERRUPTED)
async def test_an_interrupt_at_any_step_leaves_no_process(step: str, tmp_path: Path) -> None:
    folder = folder_in(tmp_path, step.replace(" ", "-").lower())
    await interrupt(folder, LIGHT, step)
    assert processes_of(folder) == set()
    assert not folder.is_running()


@pytest.mark.root
@pytest.mark.parametrize("step", STEPS)
async def test_an_interrupt_at_any_step_leaves_no_namespace(step: str, tmp_path: Path) -> None:
    folder = folder_in(tmp_path, step.replace(" ", "-").lower())
    before = set(netns.RUN.glob("*"))
    await interrupt(folder, ClusterSpec(guests="simulated", vms=1, network="namespaces"), step)
    assert set(netns.RUN.glob("*")) - before == set()
    assert processes_of(folder) == set()


async def test_impossible_request_names_remedy(tmp_path: Path) -> None:
    folder = folder_in(tmp_path, "wrong")
    launched = await launch(folder, ClusterSpec(guests="qemu", network="loopback"), attached=True)
    with pytest.raises(StepFailedError, match="choose namespaces, hub or auto"):
        await launched.follow(lambda _: None)
    assert await launched.wait() == 1
    assert processes_of(folder) == set()
