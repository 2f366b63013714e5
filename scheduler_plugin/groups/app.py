"""Assembles an ``autoscale-groups``. Importing this module creates nothing."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial

from protocol.kubernetes.api import KubernetesApi
from protocol.kubernetes.resources import HVPAS, PODS, VM_GROUPS, Resource
from protocol.messages import ObjectName
from protocol.runtime.clock import Clock
from protocol.runtime.kubernetes.lease import Leadership
from protocol.units import Seconds
from scheduler_plugin.groups.controllers.cache import Cache
from scheduler_plugin.groups.controllers.group_controller import GroupController
from scheduler_plugin.groups.controllers.member_agents import MemberAgents
from scheduler_plugin.groups.controllers.queued import GroupsContext
from scheduler_plugin.groups.controllers.surroundings import AROUND, GroupSurroundings
from scheduler_plugin.groups.controllers.vm_groups import VmGroupController
from scheduler_plugin.groups.controllers.vm_recommender import VmRecommender
from scheduler_plugin.groups.controllers.writer import Writer
from scheduler_plugin.groups.core.tortoise.configuration import Configuration
from scheduler_plugin.groups.policies.registry import every_policy
from scheduler_plugin.groups.settings import GroupsSettings
from scheduler_plugin.groups.telemetry import GroupsTelemetry


@dataclass(slots=True)
class InForce:
    """The settings in force, with the Tortoises' global configuration; replaced while the program runs."""

    settings: GroupsSettings
    configuration: Configuration

    @classmethod
    def of(cls, settings: GroupsSettings) -> InForce:
        """Those settings."""
        return cls(settings, settings.configuration())

    @property
    def interval(self) -> Seconds:
        """Interval between reconciles of every group."""
        return Seconds(self.settings.interval_seconds)

    @property
    def recommends(self) -> bool:
        """True if recommendations for VMs are ours to make."""
        return self.settings.recommender == "agents"


@dataclass(slots=True)
class GroupsProgram:
    """One ``autoscale-groups``: its parts, what to run, and what the web server asks."""

    cache: Cache
    leadership: Leadership
    telemetry: GroupsTelemetry
    in_force: InForce
    controllers: dict[str, GroupController] = field(default_factory=dict)
    vm_groups: VmGroupController | None = None
    recommender: VmRecommender | None = None

    async def run(self, api: KubernetesApi, clock: Clock) -> None:
        """Works until cancelled; then releases the Lease if it can."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.cache.run(api, clock))
                tasks.create_task(self.leadership.run())
                tasks.create_task(self._say_ready())
                for controller in self.controllers.values():
                    tasks.create_task(controller.run())
                if self.vm_groups is not None:
                    tasks.create_task(self.vm_groups.run())
                if self.recommender is not None:
                    # Only Hvpas take recommendations for VMs; a Tortoise gives a VM a floor instead.
                    hvpas = self.controllers[HVPAS.kind].policy
                    tasks.create_task(self.recommender.run(hvpas, lambda: self.in_force.recommends))
        finally:
            # Without the release a successor would wait until the Lease runs out.
            await self.leadership.release()

    def use(self, settings: GroupsSettings) -> None:
        """Puts new settings in force and queues every group."""
        # Everyone reads both through `in_force` at each use, so replacing them here is enough.
        self.in_force.settings, self.in_force.configuration = settings, settings.configuration()
        self.look_at_all()

    def look_at(self, kind: str, name: ObjectName) -> None:
        """Queues one group."""
        controller = self.vm_groups if kind == VM_GROUPS.kind else self.controllers.get(kind)
        if controller is not None:
            controller.look_at(name)

    def look_at_all(self) -> None:
        """Queues every group."""
        for controller in self.controllers.values():
            controller.look_at_all()
        if self.vm_groups is not None:
            self.vm_groups.look_at_all()

    def page(self) -> bytes:
        """The metrics as they are now."""
        # Counted at each scrape, so the numbers cannot lag behind the caches.
        for kind, controller in self.controllers.items():
            self.telemetry.take(kind, self.cache.objects(controller.policy.kind).values())
        if self.vm_groups is not None:
            self.telemetry.take(VM_GROUPS.kind, self.cache.objects(VM_GROUPS).values())
        return self.telemetry.page()

    def led(self, leads: bool) -> None:
        """The Lease was gained or lost."""
        self.telemetry.leads(leads)
        # A follower keeps its caches but writes nothing, so any group may need a write when it takes over.
        if leads:
            self.look_at_all()

    async def _say_ready(self) -> None:
        # Ready means that every kind has been listed; before that nothing is decided.
        await self.cache.synced.wait()
        self.telemetry.became_ready()


def assemble(
    api: KubernetesApi, clock: Clock, settings: GroupsSettings, identity: str, agents: MemberAgents | None = None
) -> GroupsProgram:
    """Assembles one program; nothing runs yet. It only handles groups of VMs if it can ask their ``agents``."""
    in_force, telemetry = InForce.of(settings), GroupsTelemetry()
    every = every_policy(lambda: in_force.configuration)
    kinds: tuple[Resource, ...] = (*AROUND, PODS, *(policy.kind for policy in every))
    cache = Cache(kinds, telemetry)
    leadership = Leadership(api, clock, settings.lease.terms(), identity)
    program = GroupsProgram(cache, leadership, telemetry, in_force)
    # Set afterwards: the leadership needs the program's methods, and the program needs the leadership.
    leadership.on_change, leadership.on_restored = program.led, cache.read_again
    writer = Writer(api, leadership, clock, telemetry.wrote)
    context = GroupsContext(cache, writer, clock, telemetry, lambda: in_force.interval)
    surroundings = GroupSurroundings(cache, every, program.look_at, context.interval)
    for policy in every:
        program.controllers[policy.kind.kind] = GroupController(context, policy, surroundings)
    if agents is not None:
        program.vm_groups = VmGroupController(context, agents, partial(surroundings.replica_writers, VM_GROUPS))
        program.recommender = VmRecommender(context, surroundings, agents)
    return program
