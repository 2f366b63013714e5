"""Nodes that each VM may move to in one planning round, by constraints and past refusals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property

from protocol.messages import ObjectName
from protocol.units import Instant
from scheduler_plugin.constraints.checker import Candidate, ConstraintChecker, ConstraintContext, NodeConstraints, Shape
from scheduler_plugin.constraints.cluster_view import ClusterView, PlacedPod
from scheduler_plugin.constraints.cost import CostLimit
from scheduler_plugin.constraints.model import UNCONSTRAINED
from scheduler_plugin.ledger.accounts.claims import Claim
from scheduler_plugin.ledger.ledger import Ledger
from scheduler_plugin.planner.refused_targets import RefusedTargets


class EligibleNodes:
    """Checks the constraints of VMs against placed and migrating pods."""

    def __init__(
        self,
        ledger: Ledger,
        constraint_context: ConstraintContext,
        refused: RefusedTargets,
        limit: CostLimit,
        now: Instant,
    ) -> None:
        self._ledger, self._context, self._refused, self._now = ledger, constraint_context, refused, now
        self._limit = limit
        self._constraints: dict[ObjectName, NodeConstraints] = {}

    @cached_property
    def _checker(self) -> ConstraintChecker:
        # Built on first use: in most rounds no VM moves, and a fleet has many pods.
        return ConstraintChecker(_view(self._ledger, self._context), self._limit)

    def constraints_of(self, claim: Claim, vm: ObjectName) -> NodeConstraints:
        """Constraints of the VM of ``claim`` on each node."""
        constraints = self._constraints.get(vm)
        if constraints is None:
            constraints = self._constraints[vm] = self._checker.check(self._target_pod(claim, vm))
        return constraints

    def obstacles(self, claim: Claim, vm: ObjectName) -> Callable[[str], str | None]:
        """A function that returns why the VM of ``claim`` should not move to a node, None if it may."""
        obstacle = self.constraints_of(claim, vm).obstacle
        if not self._refused.of(vm):
            return obstacle
        return lambda node: obstacle(node) or self._refused.refusal_reason(self._ledger, vm, node, self._now)

    def shape(self, claim: Claim, vm: ObjectName) -> Shape | None:
        """Cache key of the VM's constraints; None if other pods or past refusals matter too."""
        constraints = self.constraints_of(claim, vm)
        return constraints.shape if constraints.ignores_pods and not self._refused.of(vm) else None

    def place(self, claim: Claim, vm: ObjectName, node: str) -> None:
        """Count the VM on ``node`` in later checks."""
        self._checker.place(self.constraints_of(claim, vm).candidate, node)
        # It changes affinity and spread of all others.
        self._constraints.clear()

    def _target_pod(self, claim: Claim, vm: ObjectName) -> Candidate:
        """The target pod: the VM's constraints, and the tolerations and volumes of its present pod."""
        pod, facts = claim.pod, None if claim.vm is None else claim.vm.facts
        constraints, traits = UNCONSTRAINED if facts is None else facts.constraints, pod.traits
        # The target pod gets the additional tolerations of the present pod too.
        if traits.tolerations:
            constraints = replace(constraints, tolerations=(*constraints.tolerations, *traits.tolerations))
        volumes = self._context.terms_of(pod.name.namespace, traits.volumes)
        return Candidate(pod.name.namespace, constraints, traits, volumes, vm.name)


def _view(ledger: Ledger, constraint_context: ConstraintContext) -> ClusterView:
    """Every pod on its node; a migration's reservation counts as its target pod."""
    nodes = {name: account.facts.traits for name, account in ledger.nodes.items() if account.facts is not None}
    view = ClusterView(nodes, (), constraint_context.namespace_labels)
    for name in nodes:
        view.set_pods(name, ledger.nodes[name].placed)
    for migration in ledger.migrations.values():
        incoming = ledger.claims.get(migration.reservation_uid)
        if incoming is None or incoming.vm is None:
            continue
        # The target pod is made from the same object, so it has the same traits.
        for claim in incoming.vm.claims:
            if claim is not incoming:
                view.add(PlacedPod(incoming.node, claim.pod.name.namespace, claim.pod.traits))
    return view
