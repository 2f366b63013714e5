"""The demo on either cluster: the facts that it gets, and the failures of the cluster."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import pytest
from typer import BadParameter

from deploy.local.cluster.control import ClusterForwards, ControlResponse, control_endpoint
from deploy.local.cluster.folder import ClusterFolder
from deploy.local.cluster.spec import ClusterSpec
from deploy.local.kubeconfigs import kubeconfig, token_login
from deploy.local.kubernetes.plan.installation_plan import FOR_PODS
from deploy.local.kubernetes.programs.images import InstallationParts
from deploy.local.kubernetes.programs.versions import SUPPORTED
from deploy.neonvm.network.chooser import NetworkKind
from deploy.neonvm.network.sockets import connected, tcp_socket
from protocol.kubernetes.objects import Json
from protocol.kubernetes.resources import PODS
from protocol.messages import ObjectName
from scripts.autoscale.clusters import ClusterFlags, find_cluster
from scripts.autoscale.demo import _spec
from scripts.autoscale.demonstration.migration_scenario import small_vm
from scripts.autoscale.demonstration.scenario import demo_vm
from scripts.autoscale.demonstration.vm_database import MAY_MOVE, pinned
from scripts.autoscale.local import GuestKind
from scripts.autoscale.site import RemoteSite, SiteError, open_site
from scripts.autoscale.stages import DemoStage, Installed
from tests.fake_clock import FakeClock, settle
from tests.neonvm.in_process import InProcess
from tests.pod_databases import pod_database
from tests.scripts.clusters import cluster_at

STAYS = "autoscaling.neon.tech/auto-migration-enabled"


def stage(api: InProcess, folder: ClusterFolder, kubectl: Path) -> DemoStage:
    site = RemoteSite(cluster_at(folder=folder), api.client())
    installed = Installed(site, folder, InstallationParts([], "v1.36.3", str(kubectl)))
    return DemoStage(site, "QEMU in pods", "namespaces", FakeClock(), installed)


async def test_unstartable_pod_ends_the_demonstration(tmp_path: Path) -> None:
    api = InProcess()
    watching = asyncio.ensure_future(stage(api, ClusterFolder("demo", tmp_path), tmp_path).watch())
    body: Json = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "db"},
        "spec": {"containers": [{"name": "agent", "image": "x"}]},
    }
    await api.client().create(PODS, "default", body)
    await settle()
    assert not watching.done()
    container = {"name": "agent", "image": "x", "state": {"waiting": {"reason": "ErrImageNeverPull"}}}
    status: Json = {"status": {"initContainerStatuses": [container]}}
    await api.client().merge_patch(PODS, ObjectName("default", "db"), status, "status")
    await settle()
    with pytest.raises(ExceptionGroup) as caught:
        await watching
    assert caught.group_contains(SiteError, match="container agent of pod db: image x is missing")


async def test_summary_shows_guests_and_pods(tmp_path: Path) -> None:
    kubectl = tmp_path / "kubectl"
    kubectl.write_text('#!/bin/sh\necho "$@"\n')
    kubectl.chmod(0o755)
    folder = ClusterFolder("demo", tmp_path)
    shown = stage(InProcess(), folder, kubectl)
    vm: Json = {"status": {"conditions": [{"type": "Accelerated", "message": "there is no /dev/kvm"}]}}
    assert (shown.guests_of(vm), shown.guests_of({})) == ("QEMU in pods (there is no /dev/kvm)", "QEMU in pods")
    asked = f"--kubeconfig={folder.kubeconfig} get neonvm,pods --output=wide"
    assert await shown.final_summary() == f"$ kubectl get neonvm,pods --output=wide\n{asked}\n"
    of_pods = DemoStage(shown.site, "pods", "", FakeClock(), replace(shown.installed, installation=FOR_PODS))  # type: ignore[type-var]
    assert "get pods --output=wide" in await of_pods.final_summary()
    kubectl.write_text("#!/bin/sh\necho gone >&2\nexit 1\n")
    assert await shown.final_summary() == "kubectl get: gone"


async def test_embedded_cluster_knows_its_guests() -> None:
    embedded = DemoStage(
        RemoteSite(cluster_at(folder=ClusterFolder.of("x")), InProcess().client()), "QEMU", "namespaces", FakeClock()
    )
    await embedded.watch()
    assert (embedded.guests_of({}), await embedded.final_summary()) == ("QEMU", "")


class Exposing:
    """A network that exposes port 7 of any address."""

    asked: tuple[str, int] = ("", 0)

    async def expose(self, target: str, port: int) -> int:
        self.asked = target, port
        return 7


async def test_vm_is_reached_at_its_overlay_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOSCALE_HOME", str(tmp_path))
    name = f"demo-{os.getpid()}"
    folder, network = ClusterFolder.of(name), Exposing()
    folder.write_spec(ClusterSpec(kubernetes="1.36"))
    folder.kubeconfig.write_text(kubeconfig("http://127.0.0.1:1", b"", "control-plane", token_login("token")))
    client = InProcess().client()
    forwards = ClusterForwards(client, lambda host, port: connected(tcp_socket(), host, port), network.expose)
    with folder.locked():
        async with (
            control_endpoint(folder, forwards, ControlResponse, {}),
            open_site(find_cluster(ClusterFlags(name))) as site,
        ):
            vm: Json = {"status": {"extraNetIP": "10.111.0.9", "podIP": "10.244.1.2"}}
            async with site.into_vm(vm, 5432) as place:
                assert (place, network.asked) == (("127.0.0.1", 7), ("10.111.0.9", 5432))
            async with site.into_vm(pod_database(), 5432) as place:
                assert (place, network.asked) == (("127.0.0.1", 7), ("10.0.0.7", 5432))
            assert (type(site), site.title) == (RemoteSite, f"local cluster {name!r}")


def test_real_kubernetes_has_equal_nodes() -> None:
    real, embedded = (_spec("qemu", NetworkKind.AUTO, groups=False, kubernetes=each) for each in (SUPPORTED[1], ""))
    assert (real.kubernetes, embedded.kubernetes) == (SUPPORTED[1], "")
    assert (real.nodes, real.node_cpu, real.node_memory) == (2, embedded.node_cpu, embedded.node_memory)


@pytest.mark.parametrize(("guests", "groups"), [("simulated", False), ("qemu", True)])
def test_options_without_kubernetes_support_are_refused(guests: GuestKind, groups: bool) -> None:
    with pytest.raises(BadParameter, match="cannot be combined with --groups"):
        _spec(guests, NetworkKind.AUTO, groups=groups, kubernetes=SUPPORTED[0])


def test_neighbours_stay_until_clients_run() -> None:
    assert demo_vm()["metadata"]["annotations"][STAYS] == "false"  # type: ignore[index]
    vm = small_vm(ObjectName("default", "neighbour-1"))
    assert pinned(vm)["metadata"]["annotations"] == {STAYS: "false"}  # type: ignore[index]
    assert MAY_MOVE == {"metadata": {"annotations": {STAYS: None}}}


def test_pods_need_a_real_kubernetes() -> None:
    with pytest.raises(BadParameter, match="--pods needs --kubernetes: the embedded cluster runs no containers"):
        _spec("qemu", NetworkKind.AUTO, groups=False, kubernetes="", pods=True)
