"""Facts about a cluster at one moment; the only input of the judges (pure).

Instants are seconds since 1970 by this machine's calendar unless they say otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Generic, NoReturn, TypeVar

from protocol.kubernetes.objects import Json, name_of

T_co = TypeVar("T_co", covariant=True)


class UnseenError(Exception):
    """A check cannot be made; the message says what it needs."""


@dataclass(frozen=True, slots=True)
class SiteObservations(Generic[T_co]):
    """Observations of a cluster.

    >>> SiteObservations(3).value
    3
    """

    value: T_co


@dataclass(frozen=True, slots=True)
class Unseen:
    """Nothing was seen; ``why`` is one line for people.

    ``has_failed``: neither because one may not look, nor because there is no such thing. Another look may succeed.
    """

    why: str
    has_failed: bool = False

    @property
    def value(self) -> NoReturn:
        """Raises ``UnseenError``."""
        # A judge need not test each look: its check is skipped with this text.
        raise UnseenError(self.why)


Look = SiteObservations[T_co] | Unseen


def answered(looks: Mapping[str, Look[T_co]], otherwise: str) -> dict[str, T_co]:
    """What was seen, by name. Raises ``UnseenError`` if that is nothing: why, or ``otherwise`` if nobody looked."""
    values = {name: look.value for name, look in looks.items() if isinstance(look, SiteObservations)}
    if not values:
        raise UnseenError(next((look.why for look in looks.values() if isinstance(look, Unseen)), otherwise))
    return values


NOT_LOOKED: Unseen = Unseen("not checked")
Objects = Look[Sequence[Json]]


@dataclass(frozen=True, slots=True)
class ApiServerFacts:
    """The API server's answer. Our calendar is ``ahead`` seconds ahead of its ``Date``, give or take ``within``
    seconds; None if it sends no ``Date``.
    """

    version: str
    ahead: float | None = None
    within: float = 1.0


@dataclass(frozen=True, slots=True, order=True)
class Right:
    """One thing that may be done. ``namespace`` is empty for all namespaces and for cluster-wide kinds."""

    verb: str
    group: str
    resource: str
    namespace: str = ""
    name: str = ""

    def __str__(self) -> str:
        what = f"{self.resource}.{self.group}" if self.group else self.resource
        name = f" {self.name}" if self.name else ""
        return f"{self.verb} {what}{name}" + (f" in {self.namespace}" if self.namespace else "")


@dataclass(frozen=True, slots=True)
class MetricSample:
    """One value of a metrics page."""

    name: str
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class Served:
    """Certificate (PEM) that a TLS port showed, and whether each authority that should vouch for it does."""

    certificate: bytes
    distrusted: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CheckFacts:
    """Everything. ``namespace`` is that of the installation, ``now`` the moment of the look, ``release`` this command's
    version.

    Lists are whole objects of the API: ``pods``, ``config_maps``, ``secrets`` (with our certificates), ``leases`` and
    ``slices`` (of endpoints) those of the namespace, ``api_services`` the API server's own, ``vm_pods`` those of VMs,
    ``database_pods`` those that have opted in, ``waiting_pods`` those that wait for our scheduler. ``core_api`` lists
    the kinds that the API server offers, ``kubelets`` has the configurations of kubelets by node. ``metrics`` is by
    pod. ``admission`` says by program why a dry run of its pod in ``tried_in`` was refused, empty if it was not.
    ``injection`` says why a VM's pod gets no agent, empty if it does. ``answers`` says by webhook why a made-up
    review failed, empty if it did not.
    """

    namespace: str
    now: float
    server: Look[ApiServerFacts] = NOT_LOOKED
    release: str = ""
    namespaces: Objects = NOT_LOOKED
    api_services: Objects = NOT_LOOKED
    nodes: Objects = NOT_LOOKED
    node_leases: Objects = NOT_LOOKED
    deployments: Objects = NOT_LOOKED
    daemon_sets: Objects = NOT_LOOKED
    pods: Objects = NOT_LOOKED
    config_maps: Objects = NOT_LOOKED
    secrets: Objects = NOT_LOOKED
    leases: Objects = NOT_LOOKED
    slices: Objects = NOT_LOOKED
    definitions: Objects = NOT_LOOKED
    webhooks: Objects = NOT_LOOKED
    vms: Objects = NOT_LOOKED
    migrations: Objects = NOT_LOOKED
    vm_pods: Objects = NOT_LOOKED
    database_pods: Objects = NOT_LOOKED
    core_api: Look[Json] = NOT_LOOKED
    kubelets: Mapping[str, Look[Json]] = field(default_factory=dict)
    network_policies: Objects = NOT_LOOKED
    waiting_pods: Objects = NOT_LOOKED
    own_rights: Look[Mapping[Right, bool]] = NOT_LOOKED
    account_rights: Look[Mapping[str, Mapping[Right, bool]]] = NOT_LOOKED
    admission: Mapping[str, Look[str]] = field(default_factory=dict)
    tried_in: str = ""
    injection: Look[str] = NOT_LOOKED
    metrics: Mapping[str, Look[Sequence[MetricSample]]] = field(default_factory=dict)
    ledger: Look[Json] = NOT_LOOKED
    agents: Look[Mapping[str, Json | None]] = NOT_LOOKED
    served: Mapping[str, Look[Served]] = field(default_factory=dict)
    answers: Mapping[str, Look[str]] = field(default_factory=dict)

    @property
    def lacks_namespace(self) -> bool:
        """True if the installation's namespace is known not to exist."""
        namespaces = self.namespaces
        # If namespaces could not be listed, the answer is no: an unknown namespace is not a missing one.
        return isinstance(namespaces, SiteObservations) and all(
            name_of(namespace).name != self.namespace for namespace in namespaces.value
        )

    @property
    def server_now(self) -> float:
        """The moment of the look by the API server's calendar, if that is known: ages of its objects are by it."""
        ahead = self.server.value.ahead if isinstance(self.server, SiteObservations) else None
        return self.now - (ahead or 0.0)

    @property
    def failed_looks(self) -> Iterator[Unseen]:
        """Every look that failed: see ``Unseen``."""
        for attribute in fields(self):
            observed = getattr(self, attribute.name)
            # Some fields hold one look for each pod, port or program.
            for look in observed.values() if isinstance(observed, Mapping) else (observed,):
                if isinstance(look, Unseen) and look.has_failed:
                    yield look
