"""Processes of ``autoscale-injector`` on the embedded cluster, on a clock that the test moves."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from protocol.kubernetes.api import ApiCall
from protocol.kubernetes.objects import JsonObject, child, items, text, texts
from protocol.kubernetes.resources import CONFIG_MAPS, MUTATING_WEBHOOKS, SECRETS, VERSION_PATH
from protocol.runtime.certificates.keeper import certificate_in, content
from scheduler_plugin.injector.app import InjectorProgram
from scheduler_plugin.injector.settings import parse_settings
from tests.fake_clock import FakeClock
from tests.scheduler_plugin.groups.program.cluster import Connection, EmbeddedCluster

SETTINGS = """
agent: {image: "registry.example/agent:1", schedulerUrl: "https://autoscaling-scheduler.kube-system.svc:10299"}
"""
NAMESPACE = "kube-system"
SECRET = "apiVersion: v1\nkind: Secret\nmetadata: {name: %s}"
CONFIG_MAP = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: autoscaling-ca}"
WEBHOOK = """
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata: {name: autoscaling-injector}
webhooks:
  - name: pods.autoscaling.neon.tech
    clientConfig: {service: {namespace: kube-system, name: autoscaling-injector, path: /mutate}}
"""


class Way(Connection):
    """One process's way to the cluster, which says its version."""

    version = "29+"

    async def call(self, call: ApiCall) -> JsonObject:
        if call.path == VERSION_PATH and not self.is_cut:
            self.asked.append(call)
            return {"major": "1", "minor": self.version, "gitVersion": f"v1.{self.version}"}
        return await super().call(call)


@dataclass(slots=True)
class Cluster:
    """The cluster, the processes on it, and the objects that they store there."""

    folder: Path
    clock: FakeClock = field(default_factory=FakeClock)
    api: EmbeddedCluster = field(init=False)
    tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    text: str = SETTINGS

    def __post_init__(self) -> None:
        self.api = EmbeddedCluster(self.clock)

    async def install(self, *names: str) -> None:
        """Create the objects of the manifests: empty Secrets and ConfigMaps, and the webhook."""
        for name in ("autoscaling-certificates", *(f"autoscaling-certificates-{each}" for each in names)):
            await self.api.make(SECRETS, SECRET % name, NAMESPACE)
        for namespace in (NAMESPACE, "default"):
            await self.api.make(CONFIG_MAPS, CONFIG_MAP, namespace)
        await self.api.make(MUTATING_WEBHOOKS, WEBHOOK, "")

    def way(self) -> Way:
        made = Way(self.api)
        self.api.connections.append(made)
        return made

    async def start(self, identity: str, way: Way | None = None, *, follows_pods: bool = False) -> InjectorProgram:
        folder = self.folder / identity
        folder.mkdir(exist_ok=True)
        settings = parse_settings(self.text)
        program = InjectorProgram(way or self.way(), self.clock, settings, identity, folder, follows_pods)
        self.tasks[identity] = asyncio.create_task(program.run())
        await self.clock.advance(0)
        return program

    async def data(self, name: str) -> dict[str, bytes]:
        suffix = f"-{name}" if name else ""
        return content(await self.api.get(SECRETS, f"autoscaling-certificates{suffix}", NAMESPACE))

    async def serial(self, name: str) -> str:
        """The number of a certificate; empty if its Secret has none."""
        found = certificate_in(await self.data(name))
        return "" if found is None else found.serial

    async def bundles(self) -> set[bytes]:
        """All published CA bundles."""
        return {(await self.data("scheduler"))["ca.crt"], *await self.published()}

    async def published(self) -> set[bytes]:
        """The CA bundles published to agents and to the API server."""
        hook = items(await self.api.get(MUTATING_WEBHOOKS, "autoscaling-injector", ""), "webhooks")[0]
        copies = [await self.api.get(CONFIG_MAPS, "autoscaling-ca", each) for each in (NAMESPACE, "default")]
        return {
            base64.b64decode(text(child(hook, "clientConfig"), "caBundle")),
            *(texts(each, "data")["ca.crt"].encode() for each in copies),
        }


@asynccontextmanager
async def installed(folder: Path, *names: str, settings: str = SETTINGS) -> AsyncIterator[Cluster]:
    """A cluster with the Secrets of these certificates."""
    cluster = Cluster(folder, text=settings)
    await cluster.install(*names)
    try:
        yield cluster
        ended = [name for name, task in cluster.tasks.items() if task.done() and not task.cancelled()]
        assert ended == []
    finally:
        for task in cluster.tasks.values():
            task.cancel()
        if cluster.tasks:
            await asyncio.wait(cluster.tasks.values())
