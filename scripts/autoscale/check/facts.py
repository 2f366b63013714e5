"""Facts about a cluster at one moment; the only input of the judges (pure).

Times are seconds since 1970 by this machine's wall clock unless noted otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Generic, NoReturn, TypeVar

from prometheus_client.samples import Sample

from protocol.kubernetes.objects import Json, name_of

T_co = TypeVar("T_co", covariant=True)


class UnavailableError(Exception):
    """A check cannot be made; the message says what is missing."""


def require(found: object, otherwise: str) -> None:
    """Raise ``UnavailableError`` with the message ``otherwise`` if ``found`` is false or empty."""
    if not found:
        raise UnavailableError(otherwise)


@dataclass(frozen=True, slots=True)
class Observed(Generic[T_co]):
    """A successful observation of the cluster.

    >>> Observed(3).value
    3
    """

    value: T_co


@dataclass(frozen=True, slots=True)
class Unavailable:
    """An observation that could not be made; ``why`` is the reason, in one line.

    ``has_failed`` is true if the query failed for a reason other than a missing permission or object, so that it may
    succeed if repeated.
    """

    why: str
    has_failed: bool = False

    @property
    def value(self) -> NoReturn:
        """Raises ``UnavailableError``."""
        # Judges need not test each observation: the check is skipped with this reason.
        raise UnavailableError(self.why)


Observation = Observed[T_co] | Unavailable


def observed_values(observations: Mapping[str, Observation[T_co]], otherwise: str) -> dict[str, T_co]:
    """The values of successful observations, by name. Raises ``UnavailableError`` if there are none.

    Its message is the reason of the first one, or ``otherwise`` if ``observations`` is empty.
    """
    values = {name: one.value for name, one in observations.items() if isinstance(one, Observed)}
    reasons = (one.why for one in observations.values() if isinstance(one, Unavailable))
    require(values, next(reasons, otherwise))
    return values


NOT_OBSERVED: Unavailable = Unavailable("not checked")
Objects = Observation[Sequence[Json]]


@dataclass(frozen=True, slots=True)
class ApiServerFacts:
    """The API server's version and clock.

    The local clock is ``ahead`` seconds ahead of the server's ``Date`` header, give or take ``within`` seconds; None if
    there is no such header.
    """

    version: str
    ahead: float | None = None
    within: float = 1.0


@dataclass(frozen=True, slots=True, order=True)
class Right:
    """A permission. ``namespace`` is empty for all namespaces and for cluster-scoped resources."""

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
class Served:
    """The certificate (PEM) that a TLS port serves; ``distrusted`` maps webhooks to why their CA does not verify it."""

    certificate: bytes
    distrusted: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CheckFacts:
    """All observations, made at the time ``now``.

    - ``namespace`` is the installation's namespace, and ``release`` this command's version.
    - ``pods``, ``config_maps``, ``secrets`` (with our certificates), ``leases`` and ``endpoint_slices`` are the objects
      of that namespace; ``api_services`` contains the API server's own Service.
    - ``vm_pods`` run VMs, ``database_pods`` have opted in, and ``waiting_pods`` are pending for our scheduler.
    - ``core_api`` is the API server's list of core resources; ``kubelets`` maps nodes to kubelet configurations.
    - ``metrics`` maps pods to their samples, and ``served`` maps ``program:port`` to the certificate.
    - ``admission`` maps programs to the reason why a dry run of their pod in ``admission_namespace`` was refused;
      ``injection`` is the reason why a VM's pod would get no agent; ``reviews`` maps webhooks to the reason why a test
      review failed. These reasons are empty on success.
    """

    namespace: str
    now: float
    server: Observation[ApiServerFacts] = NOT_OBSERVED
    release: str = ""
    namespaces: Objects = NOT_OBSERVED
    api_services: Objects = NOT_OBSERVED
    nodes: Objects = NOT_OBSERVED
    node_leases: Objects = NOT_OBSERVED
    deployments: Objects = NOT_OBSERVED
    daemon_sets: Objects = NOT_OBSERVED
    pods: Objects = NOT_OBSERVED
    config_maps: Objects = NOT_OBSERVED
    secrets: Objects = NOT_OBSERVED
    leases: Objects = NOT_OBSERVED
    endpoint_slices: Objects = NOT_OBSERVED
    crds: Objects = NOT_OBSERVED
    webhooks: Objects = NOT_OBSERVED
    vms: Objects = NOT_OBSERVED
    migrations: Objects = NOT_OBSERVED
    vm_pods: Objects = NOT_OBSERVED
    database_pods: Objects = NOT_OBSERVED
    core_api: Observation[Json] = NOT_OBSERVED
    kubelets: Mapping[str, Observation[Json]] = field(default_factory=dict)
    network_policies: Objects = NOT_OBSERVED
    waiting_pods: Objects = NOT_OBSERVED
    own_rights: Observation[Mapping[Right, bool]] = NOT_OBSERVED
    account_rights: Observation[Mapping[str, Mapping[Right, bool]]] = NOT_OBSERVED
    admission: Mapping[str, Observation[str]] = field(default_factory=dict)
    admission_namespace: str = ""
    injection: Observation[str] = NOT_OBSERVED
    metrics: Mapping[str, Observation[Sequence[Sample]]] = field(default_factory=dict)
    ledger: Observation[Json] = NOT_OBSERVED
    agents: Observation[Mapping[str, Json | None]] = NOT_OBSERVED
    served: Mapping[str, Observation[Served]] = field(default_factory=dict)
    reviews: Mapping[str, Observation[str]] = field(default_factory=dict)

    @property
    def lacks_namespace(self) -> bool:
        """True if the installation's namespace is known not to exist."""
        namespaces = self.namespaces
        # False if namespaces could not be listed.
        return isinstance(namespaces, Observed) and all(
            name_of(namespace).name != self.namespace for namespace in namespaces.value
        )

    @property
    def server_now(self) -> float:
        """``now`` by the API server's clock, which stamps its objects; by the local clock if it is unknown."""
        ahead = self.server.value.ahead if isinstance(self.server, Observed) else None
        return self.now - (ahead or 0.0)

    @property
    def failed_queries(self) -> Iterator[Unavailable]:
        """Observations with ``has_failed``."""
        for attribute in fields(self):
            observed = getattr(self, attribute.name)
            # Some fields map pods, ports or programs to observations.
            for observation in observed.values() if isinstance(observed, Mapping) else (observed,):
                if isinstance(observation, Unavailable) and observation.has_failed:
                    yield observation
