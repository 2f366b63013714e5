"""Nodes that each VM may move to, by constraints and past refusals, in one planning round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property

from protocol.messages import ObjectName
from protocol.units import Instant
from scheduler_plugin.constraints.cluster_view import ClusterView, PlacedPod
from scheduler_plugin.constraints.judge import Candidate, ConstraintContext, Judge, NodeConstraints, Shape
from scheduler_plugin.constraints.model import UNCONSTRAINED
from scheduler_plugin.ledger.accounts.claims import Claim
from scheduler_plugin.ledger.ledger import Ledger
from scheduler_plugin.planner.refused_targets import RefusedTargets


class Places:
    """Checks VMs against placed pods and pods that are migrating."""

    def __init__(self, ledger: Ledger, surroundings: ConstraintContext, refused: RefusedTargets, now: Instant) -> None:
        self._ledger, self._surroundings, self._refused, self._now = ledger, surroundings, refused, now
        self._judgements: dict[ObjectName, NodeConstraints] = {}

    @cached_property
    def _judge(self) -> Judge:
        # Built on first use: in most rounds no VM moves, and a fleet has many pods.
        return Judge(_view(self._ledger, self._surroundings))

    def judgement(self, claim: Claim, vm: ObjectName) -> NodeConstraints:
        """Constraints of the VM of ``claim`` on each node."""
        judged = self._judgements.get(vm)
        if judged is None:
            judged = self._judgements[vm] = self._judge.judge(self._target_pod(claim))
        return judged

    def hindrances(self, claim: Claim, vm: ObjectName) -> Callable[[str], str | None]:
        """A function that returns why the VM of ``claim`` should not move to a node, None if it may."""
        judged = self.judgement(claim, vm).hindrance
        if not self._refused.of(vm):
            return judged
        return lambda node: judged(node) or self._refused.why_not(self._ledger, vm, node, self._now)

    def shape(self, claim: Claim, vm: ObjectName) -> Shape | None:
        """Cache key of the VM's constraints; None if other pods or past refusals matter too."""
        judged = self.judgement(claim, vm)
        return judged.shape if judged.is_alone and not self._refused.of(vm) else None

    def send(self, claim: Claim, vm: ObjectName, node: str) -> None:
        """Add the VM to ``node`` for later checks."""
        self._judge.place(self.judgement(claim, vm).candidate, node)
        # It changes affinity and spread of all others.
        self._judgements.clear()

    def _target_pod(self, claim: Claim) -> Candidate:
        """The target pod: the VM's constraints, and the tolerations and volumes of its present pod."""
        pod, facts = claim.pod, None if claim.vm is None else claim.vm.facts
        constraints, traits = UNCONSTRAINED if facts is None else facts.constraints, pod.traits
        # The target pod gets the additional tolerations of the present pod too.
        if traits.tolerations:
            constraints = replace(constraints, tolerations=(*constraints.tolerations, *traits.tolerations))
        volumes = self._surroundings.terms_of(pod.name.namespace, traits.volumes)
        return Candidate(pod.name.namespace, constraints, traits, volumes)


def _view(ledger: Ledger, surroundings: ConstraintContext) -> ClusterView:
    """Every pod on its node; a migration's reservation counts as its target pod."""
    nodes = {name: book.facts.traits for name, book in ledger.nodes.items() if book.facts is not None}
    view = ClusterView(nodes, (), surroundings.namespace_labels)
    for name in nodes:
        view.put(name, ledger.nodes[name].placed)
    for migration in ledger.migrations.values():
        incoming = ledger.claims.get(migration.reservation_uid)
        if incoming is None or incoming.vm is None:
            continue
        # The target pod is made from the same object, so it has the same traits.
        for claim in incoming.vm.claims:
            if claim is not incoming:
                view.add(PlacedPod(incoming.node, claim.pod.name.namespace, claim.pod.traits))
    return view
