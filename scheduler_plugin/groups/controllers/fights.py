"""Notices that another writer keeps overwriting what a group writes, and asks the API who that is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from protocol.kubernetes.api import ApiCall, ApiRefusedError
from protocol.kubernetes.objects import JsonObject, items, name_of
from protocol.kubernetes.resources import HORIZONTAL_AUTOSCALERS, VERTICAL_AUTOSCALERS, Resource
from scheduler_plugin.groups.controllers.writer import TIMEOUT, Writer
from scheduler_plugin.groups.objects.targets import TARGET_KINDS
from scheduler_plugin.groups.policies.disputes import Disputes, told
from scheduler_plugin.groups.policies.facts import GroupFacts


@dataclass(slots=True)
class Fights:
    """The fate of the writes of groups."""

    writer: Writer
    disputes: Disputes = field(default_factory=Disputes)

    async def noticed(self, facts: GroupFacts) -> GroupFacts:
        """The facts with the fields left alone for now, and why."""
        now, wall = self.writer.clock.now(), self.writer.clock.wall()
        paused: set[str] = set()
        fights: list[str] = []
        for resource, obj in _written(facts):
            name = name_of(obj)
            self.disputes.look(resource, obj, now)
            # Ask only once for each fight: the cache has no `managedFields`, so it takes a request.
            if self.disputes.unnamed(resource, name):
                self.disputes.name(resource, await self._with_managers(resource, obj))
            paused |= self.disputes.held(resource, name, now)
            fights += [
                told(resource, name.name, what, claim, wall + claim.until - now)
                for what, claim in self.disputes.fights(resource, name, now)
            ]
        return replace(facts, held=frozenset(paused), fights=tuple(fights))

    async def _with_managers(self, resource: Resource, found: JsonObject) -> JsonObject:
        """The object with its ``managedFields``, which the cache leaves out.

        It is listed by its name, because the watch already needs the right to list and a GET would need another one.
        """
        name = name_of(found)
        query = {"fieldSelector": f"metadata.name={name.name}"}
        try:
            listed = await self.writer.api.call(ApiCall("GET", resource.path(name.namespace), TIMEOUT, query=query))
        except ApiRefusedError:
            # The manager's name only helps people; without it the fight is still reported.
            return found
        return next(iter(items(listed, "items")), found)


def _written(facts: GroupFacts) -> Iterator[tuple[Resource, JsonObject]]:
    """The objects that the group writes, with their kinds."""
    if facts.target is not None and facts.arrangement is not None:
        reference = facts.arrangement.target
        yield TARGET_KINDS[reference.group, reference.kind].resource, facts.target
    if facts.hpa is not None:
        yield HORIZONTAL_AUTOSCALERS, facts.hpa
    if facts.vpa is not None:
        yield VERTICAL_AUTOSCALERS, facts.vpa
