"""The read side of the ledger: what planner, extender, page and workers may ask. None of it changes the books.

``filter`` and ``best`` note who waits for room and who was sent where, so that freed room wakes a pod and the next one
is sent elsewhere; nothing is reserved by that.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence, Set
from typing import Final

from protocol.messages import AgentRequest, ObjectName
from protocol.units import Instant, Resources, Seconds
from scheduler_plugin.ledger import binding, permit_rule, request_orders
from scheduler_plugin.ledger.accounts.claims import Claim, VmAccount
from scheduler_plugin.ledger.accounts.node_account import NodeAccount
from scheduler_plugin.ledger.explain import ClaimExplanation, explain
from scheduler_plugin.ledger.facts import WITHOUT_GUEST, PodFacts
from scheduler_plugin.ledger.moves import Migration
from scheduler_plugin.ledger.outcomes import PersistPermit, ResizePod
from scheduler_plugin.ledger.state import LedgerState
from scheduler_plugin.placement import Filtered, Room

LATELY: Final = Seconds(60.0)
"""An agent that has asked within this time counts as heard: it asks at least once in 15 s."""


class LedgerViews:
    """The accounts, and answers made of them."""

    def __init__(self) -> None:
        self._state = LedgerState()

    # Accounts; read only ----------------------------------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """False until complete lists have been taken in."""
        return self._state.is_ready

    @property
    def rooms(self) -> Mapping[str, Room]:
        """The room on every known node."""
        return self._state.rooms

    @property
    def nodes(self) -> Mapping[str, NodeAccount]:
        """Every node's book."""
        return self._state.nodes

    @property
    def claims(self) -> Mapping[str, Claim]:
        """Every claim by the pod's UID."""
        return self._state.claims

    @property
    def vms(self) -> Mapping[ObjectName, VmAccount]:
        """Every VM's account."""
        return self._state.vms

    @property
    def migrations(self) -> Mapping[ObjectName, Migration]:
        """Every migration, active or ended, that is ordered or in the API."""
        return self._state.migrations.named

    def migrations_of(self, vm: ObjectName) -> Sequence[Migration]:
        """The VM's migrations, oldest first."""
        return self._state.migrations.of(vm)

    def uid_of(self, pod: ObjectName) -> str | None:
        """The UID of the pod of that name that has a claim."""
        return self._state.uids.get(pod)

    @property
    def strained(self) -> Set[str]:
        """The nodes that VMs may have to leave: all others need no look (S4.8)."""
        return self._state.strained

    @property
    def waiting(self) -> int:
        """The number of pods that wait for room."""
        return len(self._state.waiting)

    def scaled_vms(self, now: Instant) -> tuple[int, int]:
        """The numbers of VMs with a guest and an agent: those whose agent was heard lately, and the others."""
        is_heard = [self._is_heard(vm, now) for vm in self._state.vms.values() if self._is_scaled(vm)]
        return is_heard.count(True), is_heard.count(False)

    def is_silent(self, vm: VmAccount, now: Instant) -> bool:
        """Return True if an agent is to size the VM and was not heard lately. Only the leading scheduler can tell."""
        return self._is_scaled(vm) and not self._is_heard(vm, now)

    @staticmethod
    def _is_heard(vm: VmAccount, now: Instant) -> bool:
        return now - vm.heard_at <= LATELY

    def _is_scaled(self, vm: VmAccount) -> bool:
        """Return True if one of our agents is to size the VM."""
        if vm.facts is None or not vm.facts.has_agent or vm.facts.phase in WITHOUT_GUEST:
            return False
        # VMs of another scheduler have agents that speak to that one.
        return any(claim.pod.scheduler == self._state.scheduler for claim in vm.claims)

    def explain(self, uid: str, now: Instant) -> ClaimExplanation:
        """Everything known of one pod. Raises ``UnknownPodError``."""
        claim = permit_rule.claim_of(self._state, uid)
        migrations = () if claim.pod.vm is None else self._state.migrations.of(claim.pod.vm)
        node, follows = self._state.nodes[claim.node], self._state.follows_requests
        return explain(claim, node, migrations, now, follows_requests=follows)

    # Questions of kube-scheduler (S4.10) ------------------------------------------------------------------------------

    def filter(self, pod: PodFacts, names: list[str]) -> Filtered:
        """The nodes that fit the pod. One that fits nowhere waits. Raises ``NotReadyError``."""
        self._state.require_ready()
        return binding.filter_pod(self._state, pod, names)

    def best(self, pod: PodFacts, asked: Container[str], most: int) -> list[str]:
        """The ``most`` best of the asked nodes that the pod fits; one alone is remembered for the pods after it.

        Empty if that is for ``filter`` to say: the pod fits nowhere, holds a reservation, or is a migration's.
        Raises ``NotReadyError``.
        """
        self._state.require_ready()
        return binding.best(self._state, pod, asked, most)

    def scores(self, pod: PodFacts, names: list[str]) -> list[int]:
        """Each node's score for the pod, 0-10, in the order of ``names``. Raises ``NotReadyError``."""
        self._state.require_ready()
        return self._state.node_indexes.of(self.claim_of(pod)).scores(names)

    def claim_of(self, pod: PodFacts) -> Resources:
        """The claim of the pod. Raises ``NotReadyError`` while its VM is unknown."""
        return binding.claim_of(self._state, pod)

    def is_sent_round(self, uid: str) -> bool:
        """Return True if kube-scheduler will ask about the pod on other nodes, so that no pod has to make room now."""
        return self._state.sampled.is_sent_round(uid)

    def places(self, pod: PodFacts) -> bool:
        """Return True if the pod is placed by the scheduler that the extender serves."""
        return pod.scheduler == self._state.scheduler

    # Questions of those who write to the API --------------------------------------------------------------------------

    def wants(self, order: PersistPermit) -> bool:
        """Return True if the write still makes sense: a permit is taken back only from a VM without an agent."""
        account = self._state.vms.get(order.vm)
        # Autoscaling may have been switched on again while the write waited in its queue.
        return not order.takes_back or account is None or not (account.has_agent and account.claims)

    @property
    def follows_requests(self) -> bool:
        """True if permits wait for the requests of pods."""
        return self._state.follows_requests

    def requests_astray(self) -> list[str]:
        """The UIDs of all pods whose requests are not what they should be."""
        return request_orders.requests_astray(self._state)

    def is_short(self, uid: str, request: AgentRequest) -> bool:
        """Return True if the pod's requests do not hold yet all that the agent asks for, and may come to hold more."""
        return request_orders.is_short(self._state, uid, request)

    def is_awaited(self, uid: str) -> bool:
        """Return True if the pod asks for more than its kubelet has set aside, and the kubelet has not refused it."""
        claim = self._state.claims.get(uid)
        runner = None if claim is None else claim.pod.runner
        if claim is None or runner is None or runner.problem or claim.resizes is None or claim.resizes.may_land:
            return False
        return claim.resizes.is_unanswered(runner)

    def is_unheld(self, uid: str) -> bool:
        """Return True if the pod's requests are less than its VM has reserved."""
        return request_orders.is_unheld(self._state, uid)

    def requests_of_waiting(self, pod: PodFacts) -> tuple[ResizePod, ...]:
        """Writes for a pod that waits for a node, each tried if the one before is refused.

        Raises ``NotReadyError`` while its VM is not known.
        """
        return request_orders.requests_of_waiting(self._state, pod)
