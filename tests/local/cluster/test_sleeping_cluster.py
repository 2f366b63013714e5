"""A VM of a whole cluster of real processes sleeps by order and wakes for its load."""

from pathlib import Path

from deploy.kube.client import client_from_kubeconfig
from deploy.local.cluster.folder import ClusterFolder
from protocol.guest.sleep import SleepState, sleep_order_patch, sleep_report
from protocol.kubernetes.objects import Json, text
from protocol.kubernetes.resources import VIRTUAL_MACHINES
from protocol.names import ANNOTATION_PERMIT
from protocol.permits import encode_permit
from protocol.virtual_machine import parse_virtual_machine
from tests.local.cluster.living import cluster, folder_in, seen
from tests.local.cluster.test_whole_cluster import LIGHT, VM, press, runs


async def change(folder: ClusterFolder, body: Json) -> None:
    async with client_from_kubeconfig(folder.kubeconfig) as client:
        await client.merge_patch(VIRTUAL_MACHINES, VM, body)


async def ended(folder: ClusterFolder, state: SleepState) -> Json:
    """The VM once its last order has come to ``state``."""
    return await seen(folder, VM, lambda now: sleep_report(now).state is state)


async def test_vm_of_cluster_sleeps_and_wakes(tmp_path: Path) -> None:
    folder = folder_in(tmp_path, "sleeping")
    async with cluster(folder, LIGHT):
        vm = await seen(folder, VM, runs)
        await change(folder, sleep_order_patch("first"))
        asleep = await ended(folder, SleepState.ASLEEP)
        assert (text(asleep, "status", "phase"), text(asleep, "status", "cpus")) == ("Asleep", "")
        assert text(asleep, "status", "podIP") == text(vm, "status", "podIP")
        await press(folder, asleep, 2.0)
        permit = encode_permit(parse_virtual_machine(asleep).use)
        await change(folder, {"metadata": {"annotations": {ANNOTATION_PERMIT: permit}}})
        awake = await ended(folder, SleepState.AWAKE)
        assert sleep_report(awake).message == "its load is not idle"
        await seen(folder, VM, runs)
        await change(folder, sleep_order_patch("second"))
        refused = await ended(folder, SleepState.REFUSED)
        assert sleep_report(refused).message == f"{VM}: the guest has load"
