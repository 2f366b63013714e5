"""Who speaks to the scheduler, and for which VM that party may speak (architecture, decision 5; B.4).

Rules that hold here:

- A token is judged by the API server (TokenReview, for our audience only). Its verdict is kept briefly, under the
  token's hash; the token itself is kept nowhere.
- A sidecar speaks for the pod that its token is bound to: same namespace, name and UID. A per-node agent, whose service
  account the settings list, speaks for the pods of the node that its token is bound to.
- No usable token is 401, another's pod is 403; in both cases nothing has been changed.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from protocol.units import Instant, Seconds
from scheduler_plugin.cluster.api import JsonObject
from scheduler_plugin.ledger import PodFacts

ACCEPTED_FOR: Final = Seconds(60.0)
REFUSED_FOR: Final = Seconds(5.0)
"""A refusal is kept only long enough that a flood of bad tokens does not become a flood of reviews."""

REMEMBERED: Final = 20_000
"""At most so many verdicts are kept; the oldest go first."""

LONGEST_TOKEN: Final = 16 * 1024

_USER: Final = "system:serviceaccount:"


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a token belongs to. ``account`` is ``namespace:name``; the rest says what the token is bound to."""

    account: str
    namespace: str
    pod: str | None = None
    pod_uid: str | None = None
    node: str | None = None


Reviewer = Callable[[str, str], Awaitable[JsonObject]]
"""(token, audience) -> the API server's TokenReview. Raises ``cluster.api.ApiError``."""


class _Extra(msgspec.Struct, frozen=True):
    pod: list[str] = msgspec.field(default_factory=list, name="authentication.kubernetes.io/pod-name")
    pod_uid: list[str] = msgspec.field(default_factory=list, name="authentication.kubernetes.io/pod-uid")
    node: list[str] = msgspec.field(default_factory=list, name="authentication.kubernetes.io/node-name")


class _User(msgspec.Struct, frozen=True):
    username: str = ""
    extra: _Extra | None = None


class _Status(msgspec.Struct, frozen=True):
    authenticated: bool = False
    audiences: list[str] | None = None
    user: _User = _User()


class _Review(msgspec.Struct, frozen=True):
    status: _Status = _Status()


def identity_in(review: Mapping[str, object], audience: str) -> Identity | None:
    """Whom a TokenReview names, None where it accepts nobody for ``audience``."""
    try:
        status = msgspec.convert(review, _Review).status
    except msgspec.ValidationError:
        return None
    if not status.authenticated or audience not in (status.audiences or ()):
        return None
    if not status.user.username.startswith(_USER):
        return None
    account = status.user.username.removeprefix(_USER)
    extra = status.user.extra or _Extra()
    return Identity(account, account.partition(":")[0], _only(extra.pod), _only(extra.pod_uid), _only(extra.node))


def _only(values: list[str]) -> str | None:
    return values[0] if len(values) == 1 else None


def may_speak_for(who: Identity, pod: PodFacts, node: str | None, node_agents: frozenset[str]) -> bool:
    """Whether ``who`` is the agent of ``pod``, which has its claim on ``node``."""
    if who.pod_uid is not None and who.pod_uid == pod.uid:
        return who.namespace == pod.name.namespace and who.pod == pod.name.name
    return who.account in node_agents and who.node is not None and who.node == node


@dataclass(frozen=True, slots=True)
class _Verdict:
    identity: Identity | None
    until: Instant


@dataclass(slots=True, eq=False)
class TokenJudge:
    """Judges tokens by ``review`` and remembers each verdict briefly."""

    review: Reviewer
    now: Callable[[], Instant]
    _verdicts: OrderedDict[bytes, _Verdict] = field(default_factory=OrderedDict)

    async def identify(self, authorization: str | None, audience: str) -> Identity | None:
        """Whom an ``Authorization`` header names; None: nobody. Raises ``cluster.api.ApiError`` if nobody can say."""
        token = _bearer(authorization)
        if token is None:
            return None
        key = hashlib.sha256(f"{audience}\n{token}".encode()).digest()
        known = self._verdicts.get(key)
        if known is not None and self.now() < known.until:
            return known.identity
        identity = identity_in(await self.review(token, audience), audience)
        kept_for = REFUSED_FOR if identity is None else ACCEPTED_FOR
        self._verdicts[key] = _Verdict(identity, Instant(self.now() + kept_for))
        self._verdicts.move_to_end(key)
        if len(self._verdicts) > REMEMBERED:
            self._verdicts.popitem(last=False)
        return identity


def _bearer(authorization: str | None) -> str | None:
    scheme, _, token = (authorization or "").partition(" ")
    token = token.strip()
    return token if scheme.lower() == "bearer" and 0 < len(token) <= LONGEST_TOKEN else None
