"""The stage of a demonstration: the embedded cluster, or a real Kubernetes. The acts know neither."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, Protocol

from rich.console import Console

from deploy.kube.informer import Informer
from deploy.local.cluster.control import ask_cluster
from deploy.local.cluster.folder import ClusterFolder
from deploy.local.cluster.spec import ClusterSpec
from deploy.local.kubernetes.machine.installation import InstallationError
from deploy.local.kubernetes.plan.installation_plan import hopeless
from protocol.kubernetes.conditions import condition_of
from protocol.kubernetes.objects import Json, text
from protocol.kubernetes.resources import PODS
from protocol.runtime.clock import Clock
from scripts.autoscale.demonstration.waiting import fail_with_first
from scripts.autoscale.site import Site
from scripts.autoscale.stages.fresh_cluster import fresh_cluster
from scripts.autoscale.stages.fresh_kubernetes import Installed, fresh_kubernetes

_SHOWN: Final = ("get", "neonvm,pods", "--output=wide")


class DemoStage(Protocol):
    """A cluster that is up, in words for people."""

    @property
    def site(self) -> Site:
        """The way to it."""

    @property
    def guests(self) -> str:
        """Kind of guests."""

    @property
    def network(self) -> str:
        """Kind of nodes."""

    def guests_of(self, vm: Json) -> str:
        """The same as ``guests``, with the facts known once a VM runs."""

    async def watch(self) -> None:
        """Watches until cancelled. Raises ``SiteError`` if a part of the cluster has failed for good."""

    async def last_look(self) -> str:
        """Summary at the end; empty if there is nothing to show."""


@dataclass(frozen=True, slots=True)
class EmbeddedStage:
    """The embedded cluster. Its process ends if it cannot keep a part running."""

    site: Site
    guests: str
    network: str

    def guests_of(self, vm: Json) -> str:  # noqa: ARG002 - the cluster knows it from the start
        """As the cluster says."""
        return self.guests

    async def watch(self) -> None:
        """There is nothing beside the cluster's process."""

    async def last_look(self) -> str:
        """Nothing: ``autoscale top`` shows more."""
        return ""


@dataclass(frozen=True, slots=True)
class KubernetesStage:
    """A real Kubernetes."""

    installed: Installed
    site: Site
    guests: str
    network: str
    clock: Clock

    def guests_of(self, vm: Json) -> str:
        """With the reason for which the guest is emulated, or is not."""
        why = condition_of(vm, "Accelerated")
        return f"{self.guests} ({text(why, 'message')})" if why else self.guests

    async def watch(self) -> None:
        """Raises as soon as a pod is seen that cannot come up any more."""
        await fail_with_first(Informer(self.site.client, PODS, self.clock), lambda pod: hopeless([pod]))

    async def last_look(self) -> str:
        """Summary of what people ask first."""
        try:
            return f"$ kubectl {' '.join(_SHOWN)}\n{await self.installed.kubectl(*_SHOWN)}"
        except InstallationError as error:
            # The summary is an extra: its failure must not hide the outcome.
            return str(error)


@asynccontextmanager
async def fresh_stage(name: str, spec: ClusterSpec, console: Console, clock: Clock) -> AsyncIterator[DemoStage]:
    """A new cluster, removed at the end. Raises as ``fresh_cluster``."""
    folder = ClusterFolder.of(name)
    if not spec.kubernetes:
        async with fresh_cluster(name, spec, console) as site:
            cluster_status = await ask_cluster(folder, "status")
            yield EmbeddedStage(site, cluster_status.guests, cluster_status.network)
        return
    async with fresh_kubernetes(name, spec, console, clock) as installed:
        cluster_status = await ask_cluster(folder, "status")
        guests = f"QEMU in pods of {cluster_status.guests}"
        yield KubernetesStage(installed, installed.site, guests, cluster_status.network, clock)
