"""Keeps standbys in pods at the size of their primary, and promotes one if the primary's node is full (B.7)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from protocol.kubernetes.objects import JsonObject, has_finished, is_terminating, name_of, uid_of
from protocol.kubernetes.resources import CNPG_CLUSTERS
from protocol.messages import ObjectName
from scheduler_plugin.groups.controllers.policies import GroupFacts
from scheduler_plugin.groups.core.tandem import NO_DENIALS, DenialHistory, Switchover, Tandem
from scheduler_plugin.groups.objects.instances import cluster_state, floor_write, promotion, tandem_of
from scheduler_plugin.groups.objects.writes import Write

DENIED: Final = "PrimaryDenied"
"""Condition that is True while the primary is denied room; its reason says what happens next."""

Remark = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class TandemWrites:
    """Writes to a group's pods and Cluster, and the denials of the primary to remember until the next reconcile.

    ``why`` is the reason for a promotion.
    """

    floors: tuple[Write, ...] = ()
    promotion: Write | None = None
    why: str = ""
    denials: DenialHistory = NO_DENIALS


def switchable_primary(facts: GroupFacts) -> ObjectName | None:
    """The pod of the primary, if the Cluster is annotated to allow switchovers, else None."""
    tandem = None if facts.target is None else _tandem(facts)
    if tandem is None or facts.target is None or not cluster_state(facts.target, tandem.primary.name).allows_switchover:
        return None
    return ObjectName(name_of(facts.target).namespace, tandem.primary.name)


def plan_tandem(facts: GroupFacts, now: datetime) -> tuple[GroupFacts, TandemWrites]:
    """Plan writes for a target whose pods are sized by agents.

    Return them and the facts, with a condition if the primary is denied room.
    """
    desired, tandem = facts.desired, _tandem(facts)
    if desired is None or facts.target is None or tandem is None:
        return facts, TandemWrites()
    tandem, pods = tandem.with_denial(facts.denied), {name_of(pod).name: pod for pod in facts.pods}
    floors = tuple(floor_write(pods[name], floor) for name, floor in tandem.new_floors(now).items())
    if desired.target.resource is not CNPG_CLUSTERS:
        return facts, TandemWrites(floors)
    primary = tandem.primary
    denials = facts.denials.updated(uid_of(pods[primary.name]), primary.denied_since, now)
    remarks, promoted = _switchover(tandem, facts.target, denials.length, now)
    desired = replace(desired, remarks=(*desired.remarks, *remarks))
    return replace(facts, desired=desired), replace(promoted, floors=floors, denials=denials)


def _tandem(facts: GroupFacts) -> Tandem | None:
    if facts.desired is None or not (facts.desired.by_agents and facts.desired.floors):
        return None
    running = [pod for pod in facts.pods if not (is_terminating(pod) or has_finished(pod))]
    return tandem_of(running, facts.desired.target.resource)


def _switchover(
    tandem: Tandem, cluster: JsonObject, denied_for: timedelta, now: datetime
) -> tuple[tuple[Remark, ...], TandemWrites]:
    decision = tandem.switchover(cluster_state(cluster, tandem.primary.name), denied_for, now)
    if decision is None:
        return (), TandemWrites()
    why = tandem.sentence(decision)
    is_promoted = decision.outcome is Switchover.PROMOTED
    write = promotion(cluster, decision.to, now) if is_promoted else None
    return ((DENIED, decision.outcome.value, why),), TandemWrites(promotion=write, why=why)
