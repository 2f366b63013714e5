"""Assembles ``autoscale-groups``. Nothing is created at import."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial
from typing import Never

from protocol.kubernetes.api import KubernetesApi
from protocol.kubernetes.resources import HVPAS, PODS, TORTOISES, VM_GROUPS, Resource
from protocol.runtime.clock import Clock
from protocol.runtime.kubernetes.lease import Leadership
from scheduler_plugin.groups.controllers.controller import Cache, GroupsContext, QueuedController, Writer
from scheduler_plugin.groups.controllers.denials import Denials
from scheduler_plugin.groups.controllers.group_controller import GroupController
from scheduler_plugin.groups.controllers.member_agents import MemberAgents
from scheduler_plugin.groups.controllers.policies import GroupPolicy, HvpaPolicy
from scheduler_plugin.groups.controllers.tortoise_policy import TortoisePolicy
from scheduler_plugin.groups.controllers.vm_groups import VmGroupController
from scheduler_plugin.groups.controllers.vm_recommender import VmRecommender
from scheduler_plugin.groups.controllers.watches import REFERENCED_KINDS, GroupWatches
from scheduler_plugin.groups.core.tortoise.configuration import Configuration
from scheduler_plugin.groups.settings import GroupsSettings
from scheduler_plugin.groups.telemetry import GroupsTelemetry


@dataclass(slots=True)
class GroupsProgram:
    """One ``autoscale-groups``. The Tortoises' ``configuration`` can change at any time."""

    context: GroupsContext
    cache: Cache
    leadership: Leadership
    telemetry: GroupsTelemetry
    configuration: Configuration
    watches: GroupWatches = field(init=False)
    controllers: dict[str, QueuedController] = field(default_factory=dict)
    recommender: VmRecommender | None = None
    _won: dict[Resource, asyncio.Event] = field(init=False)

    def __post_init__(self) -> None:
        self._won = {kind: asyncio.Event() for kind in self.cache.kinds}

    async def run(self, api: KubernetesApi, clock: Clock) -> None:
        """Run until cancelled, then release the Lease if this process holds it."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.cache.run(api, clock))
                tasks.create_task(self.leadership.run())
                for kind in self.cache.kinds:
                    tasks.create_task(self._begin_terms(kind))
                tasks.create_task(self._log_ready())
                for controller in self.controllers.values():
                    tasks.create_task(controller.run())
                if self.recommender is not None:
                    tasks.create_task(self.recommender.run(lambda: self.context.settings.recommender == "agents"))
        finally:
            # Otherwise a successor would have to wait until it expires.
            await self.leadership.release()

    def use(self, settings: GroupsSettings) -> None:
        """Apply new settings and queue every group."""
        self.context.settings, self.configuration = settings, settings.configuration()
        self.enqueue_all()

    def enqueue_all(self) -> None:
        """Queue every group."""
        for controller in self.controllers.values():
            controller.enqueue_all()

    def page(self) -> bytes:
        """Return the metrics page."""
        # Count at each scrape, so that the numbers match the caches.
        for kind, controller in self.controllers.items():
            self.telemetry.take(kind, self.cache.objects(controller.kind).values())
        return self.telemetry.page()

    def led(self, leads: bool) -> None:
        """React to a Lease that was acquired or lost."""
        self.telemetry.leads(leads)
        if leads:
            for won in self._won.values():
                won.set()

    async def _begin_terms(self, kind: Resource) -> Never:
        won = self._won[kind]
        while True:
            await won.wait()
            won.clear()
            term = self.leadership.term
            # A watch may have been silent for up to 50 s, and a VM that is not in the cache counts as deleted.
            await self.cache.refresh(kind)
            self.context.listed_in[kind] = term
            # This process wrote nothing as a standby, so any group may need a write now.
            self.enqueue_all()

    async def _log_ready(self) -> None:
        await self.cache.synced.wait()
        self.telemetry.became_ready()


def assemble(  # noqa: PLR0913 - the parts of a process
    api: KubernetesApi,
    clock: Clock,
    settings: GroupsSettings,
    identity: str,
    *,
    agents: MemberAgents | None = None,
    denials: Denials | None = None,
) -> GroupsProgram:
    """Assemble the program; nothing runs yet.

    Without ``agents`` of VMs, groups of VMs are not reconciled. Without the scheduler's ``denials``, only the kubelet's
    refusals show that a primary's node is full.
    """
    telemetry = GroupsTelemetry()
    cache = Cache((*REFERENCED_KINDS, PODS, HVPAS, TORTOISES), telemetry)
    leadership = Leadership(api, clock, settings.lease.terms(), identity)
    writer = Writer(api, leadership, clock, telemetry.writes)
    context = GroupsContext(cache, writer, clock, telemetry, settings)
    program = GroupsProgram(context, cache, leadership, telemetry, settings.configuration())
    # Set afterwards, because the two refer to each other.
    leadership.on_change, leadership.on_restored = program.led, cache.read_again
    hvpas = HvpaPolicy()
    policies: tuple[GroupPolicy, ...] = (hvpas, TortoisePolicy(lambda: program.configuration))
    program.watches = watches = GroupWatches(context, policies, program.controllers)
    for policy in policies:
        program.controllers[policy.kind.kind] = GroupController(context, policy, watches, denials)
    if agents is not None:
        writers = partial(watches.replica_writers, VM_GROUPS)
        program.controllers[VM_GROUPS.kind] = VmGroupController(context, agents, writers)
        # For Hvpas only, because a Tortoise gives a VM a floor instead.
        program.recommender = VmRecommender(context, watches, agents, hvpas)
    return program
