"""Identity of a caller, and the VMs that it may speak for (B.4). Pure.

A sidecar speaks for the pod that its token is bound to: same namespace, name and UID. A per-node agent, whose service
account the settings list, speaks for the pods of the node that its token is bound to. So does a pod that the settings
admit without a token, for those of its own node.
No usable token is 401, another's pod is 403; neither changes anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from scheduler_plugin.ledger import PodFacts
from scheduler_plugin.settings.document import Tokenless

_USER: Final = "system:serviceaccount:"


@dataclass(frozen=True, slots=True)
class CallerIdentity:
    """The owner of a token. ``account`` is ``namespace:name``; the rest says what the token is bound to.

    ``by_address``: there is no token, and the pod was identified by its address; ``account`` names it.
    """

    account: str
    namespace: str
    pod: str | None = None
    pod_uid: str | None = None
    node: str | None = None
    by_address: bool = False


class _Extra(msgspec.Struct, frozen=True):
    pod: list[str] = msgspec.field(default_factory=list, name="authentication.kubernetes.io/pod-name")
    pod_uid: list[str] = msgspec.field(default_factory=list, name="authentication.kubernetes.io/pod-uid")
    node: list[str] = msgspec.field(default_factory=list, name="authentication.kubernetes.io/node-name")


class _ReviewedUser(msgspec.Struct, frozen=True):
    username: str = ""
    extra: _Extra | None = None


class _TokenReviewStatus(msgspec.Struct, frozen=True):
    authenticated: bool = False
    audiences: list[str] | None = None
    user: _ReviewedUser = _ReviewedUser()


class _TokenReview(msgspec.Struct, frozen=True):
    status: _TokenReviewStatus = _TokenReviewStatus()


def identity_in(review: Mapping[str, object], audience: str) -> CallerIdentity | None:
    """The service account that a TokenReview names; None if the token is not valid for ``audience``."""
    try:
        status = msgspec.convert(review, _TokenReview).status
    except (msgspec.ValidationError, RecursionError):
        return None
    # ``authenticated`` alone is not enough: an API server without audiences ignores the one in the review.
    if not status.authenticated or audience not in (status.audiences or ()):
        return None
    if not status.user.username.startswith(_USER):
        return None
    account = status.user.username.removeprefix(_USER)
    # The API server sets these only for tokens that are bound to a pod or a node.
    extra = status.user.extra or _Extra()
    return CallerIdentity(account, account.partition(":")[0], _only(extra.pod), _only(extra.pod_uid), _only(extra.node))


def _only(values: list[str]) -> str | None:
    # The API server never sends several values; with several it would be unclear which one counts.
    return values[0] if len(values) == 1 else None


def identity_of(pod: PodFacts | None, admitted: Tokenless | None) -> CallerIdentity | None:
    """Identity of ``pod``, from whose address a request comes; None if it is not admitted."""
    # A VM's pod is never admitted: programs in a guest must not speak for other VMs. The address of a terminating pod
    # may soon be another's.
    if pod is None or admitted is None or pod.vm is not None or pod.traits.is_leaving or not admitted.admits(pod):
        return None
    account = f"{pod.name.namespace}:{pod.name.name}"
    # With the pod's node: like any per-node agent it speaks only for VMs on its own node.
    return CallerIdentity(account, pod.name.namespace, pod.name.name, pod.uid, pod.node, by_address=True)


def may_speak_for(who: CallerIdentity, pod: PodFacts, node: str | None, node_agents: frozenset[str]) -> bool:
    """Return True if ``who`` is the agent of ``pod``, whose claim is on ``node``."""
    # By UID: a pod that was deleted and created again under the same name is another one.
    if who.pod_uid is not None and who.pod_uid == pod.uid:
        return who.namespace == pod.name.namespace and who.pod == pod.name.name
    return (who.by_address or who.account in node_agents) and who.node is not None and who.node == node
