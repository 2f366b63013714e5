"""Composition root of ``neonvm-controller``.

Every replica maintains its caches; only the one that holds the Lease acts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from deploy.kube.client import ApiClient
from deploy.kube.events import EventRecorder
from deploy.kube.informer import Informer
from deploy.neonvm.access.connections import RunnerConnections
from deploy.neonvm.controller.controller import NeonVmController
from deploy.neonvm.dependencies import ControllerDependencies
from deploy.neonvm.migration.migration_controller import MigrationController
from deploy.neonvm.objects.cached_pod import cached_pod
from deploy.neonvm.objects.pod_form import RunnerForm
from deploy.neonvm.remote.address_choice import AddressRange
from deploy.neonvm.remote.address_claims import AddressClaims
from deploy.neonvm.remote.pod_guests import PodGuests, PodGuestsDependencies
from deploy.neonvm.remote.remote_guest import Connect
from deploy.neonvm.service.runner_authority import RunnerAuthority
from deploy.neonvm.service.runner_policies import RunnerPolicies
from protocol.kubernetes.objects import Json
from protocol.kubernetes.resources import IP_ADDRESSES, MIGRATIONS, PODS, VIRTUAL_MACHINES, Resource
from protocol.messages import ObjectName
from protocol.runtime.clock import Clock
from protocol.runtime.kubernetes.lease import Leadership

_KINDS: Final = (PODS, VIRTUAL_MACHINES, MIGRATIONS, IP_ADDRESSES)


class LeadershipLostError(Exception):
    """This process lost the Lease; another replica may be acting."""


@dataclass(frozen=True, slots=True)
class ServiceDependencies:
    """Dependencies of the program. ``runners`` are reached at their APIs, ``connect`` reaches their QEMUs, and
    ``ended`` gets the uid of each pod that has ended. ``policy_namespace`` is the namespace of the programs that
    NetworkPolicies around runner pods let in; if it is empty, none are made.
    """

    client: ApiClient
    leadership: Leadership
    runners: RunnerConnections
    connect: Connect
    clock: Clock
    form: RunnerForm
    addresses: AddressRange
    authority: RunnerAuthority
    ended: Callable[[str], None] = lambda _: None
    policy_namespace: str = ""


class ControllerService:
    """One ``neonvm-controller``. ``run`` works until cancelled, or until the Lease is lost."""

    def __init__(self, deps: ServiceDependencies) -> None:
        self.deps = deps
        self._leads = asyncio.Event()
        self._lost = asyncio.Event()
        self.caches: Mapping[Resource, Informer] = {
            kind: Informer(deps.client, kind, deps.clock, cached_pod if kind is PODS else None) for kind in _KINDS
        }
        pods, vms = self.caches[PODS], self.caches[VIRTUAL_MACHINES]
        self._claims = AddressClaims(deps.client, self.caches[IP_ADDRESSES], vms, deps.addresses)
        self.guests = PodGuests(
            PodGuestsDependencies(pods, deps.runners, deps.connect, self._claims, deps.clock, self._changed, deps.ended)
        )
        controllers = ControllerDependencies(
            client=deps.client,
            vms=vms,
            pods=pods,
            migrations=self.caches[MIGRATIONS],
            guest_host=self.guests,
            events=EventRecorder(deps.client, "neonvm-controller", deps.clock),
            clock=deps.clock,
            form=self._pod,
        )
        self._vms = NeonVmController(controllers)
        self._migrations = MigrationController(controllers)
        deps.leadership.on_change, deps.leadership.on_restored = self._on_leadership, self._on_restored

    @property
    def missing(self) -> list[str]:
        """The resources that have not been listed yet."""
        return [kind.plural for kind, cache in self.caches.items() if not cache.synced.is_set()]

    def _on_restored(self) -> None:
        """Relist everything: the Lease has become older, so the cluster's store was restored from a backup."""
        for cache in self.caches.values():
            cache.relist()

    async def run(self) -> None:
        """Run until cancelled. Raises ``LeadershipLostError``."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.deps.leadership.run())
                for cache in self.caches.values():
                    # A standby maintains its caches too, so that it can take over immediately.
                    tasks.create_task(cache.run())
                tasks.create_task(self._act())
        finally:
            # So that the next leader need not wait until the Lease expires.
            await self.deps.leadership.release()

    async def _act(self) -> None:
        await self._leads.wait()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._controllers())
            try:
                await self._lost.wait()
            finally:
                # Do not cancel active migrations: the next leader resumes driving them.
                self.guests.is_ending = True
            # The process exits and restarts as a standby, so no state of an old term survives into a new one.
            raise LeadershipLostError

    async def _controllers(self) -> None:
        # A watch may have been silent for up to 50 s, and a VM whose pod is not in the cache counts as failed. Lists
        # that start now contain everything that earlier leaders wrote. Claims of addresses are checked when created.
        async with asyncio.TaskGroup() as lists:
            for kind in (PODS, VIRTUAL_MACHINES, MIGRATIONS):
                lists.create_task(self.caches[kind].catch_up())
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.deps.authority.run())
            await self.deps.authority.ready.wait()  # each pod needs the CAs
            for part in (self.guests, self._vms, self._migrations):
                tasks.create_task(part.run())
            tasks.create_task(self._claims.run(self.deps.clock))
            if self.deps.policy_namespace:
                vms, pods = self.caches[VIRTUAL_MACHINES], self.caches[PODS]
                tasks.create_task(
                    RunnerPolicies(self.deps.client, vms, pods, self.deps.clock, self.deps.policy_namespace).run()
                )

    def _pod(self, vm: Json, plain: Json) -> Json:
        # Each pod gets the current CAs, which are renewed over time.
        return replace(self.deps.form, authorities=self.deps.authority.authorities)(vm, plain)

    def _on_leadership(self, leads: bool) -> None:
        if leads:
            self._leads.set()
        # A replica that never led cannot lose the Lease.
        elif self._leads.is_set():
            self._lost.set()

    def _changed(self, vm: ObjectName) -> None:
        self._vms.enqueue(vm)
        self._migrations.enqueue(vm)
