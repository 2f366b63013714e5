"""Pods with a postgres that is resized in place, as facts about databases for the ledger (B.7)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Set
from typing import Final, NamedTuple

from msgspec.structs import asdict

from protocol.kubernetes.objects import JsonObject, controller_of, number, text
from protocol.messages import ObjectName
from protocol.names import ANNOTATION_RESIZE
from protocol.pod_database import PodDatabase, database_of, parse_pod_database
from protocol.runtime.kubernetes.watches.informer import FactInformer
from protocol.runtime.kubernetes.watches.kinds import FactChange, WatchReport
from scheduler_plugin.cluster.pods.conflicts import KINDS, Conflict, Target
from scheduler_plugin.cluster.virtual_machines import weight_of
from scheduler_plugin.ledger.facts import DEFAULT_WEIGHT, PodFacts, VmFacts
from scheduler_plugin.texts import explanations

_TEMPLATE_HASH: Final = "pod-template-hash"
_MANAGED_BY: Final = "app.kubernetes.io/managed-by"


class ClusterDatabase(PodDatabase, frozen=True):
    """A pod with a postgres, and what controls the pod; None if nothing does."""

    owner: Target | None = None


def read_database(pod: JsonObject) -> ClusterDatabase:
    """A pod that opted in. Raises ``InvalidObjectError``."""
    database = parse_pod_database(pod)
    # Anybody may put hundreds of kilobytes into the others, for each of thousands of pods.
    switch = {name: text for name, text in database.annotations.items() if name == ANNOTATION_RESIZE}
    return ClusterDatabase(**asdict(database) | {"annotations": switch}, owner=_owner(pod, database))


def _owner(pod: JsonObject, database: PodDatabase) -> Target | None:
    owner = controller_of(pod)
    if not owner:
        return None
    kind, name = text(owner, "kind"), text(owner, "name")
    if kind == "ReplicaSet":
        # A Deployment names its ReplicaSets so, and that saves reading them.
        kind, name = "Deployment", name.removesuffix(f"-{database.labels.get(_TEMPLATE_HASH, '')}")
    return Target(database.name.namespace, text(owner, "apiVersion").partition("/")[0], kind, name)


def database_facts(database: PodDatabase, refused: str = "") -> VmFacts:
    """The database as the ledger wants it; ``refused`` is why it gets no more than it has, empty if it may grow."""
    return VmFacts(
        name=database.name,
        uid=database.uid,
        version=number(database.resource_version),
        most=database.use if refused else database.bounds.max,
        use=database.use,
        # Also while postgres starts again: the kubelet keeps that much for the container.
        actual=database.actual,
        pod=ObjectName(database.name.namespace, database.pod_name or ""),
        stays_because=explanations.ORDINARY_POD,
        phase=database.phase,
        weight=weight_of(database) or DEFAULT_WEIGHT,
        is_pod=True,
        refused=refused,
    )


class _ConflictKey(NamedTuple):
    kind: str
    name: ObjectName


class PodDatabases:
    """The pods that opted in, and what else changes their requests.

    ``known`` are their facts by the name of the database, of those that cannot be served, too. ``changed`` is called
    with each database that may grow again, or no longer, because another object has changed. ``appeared`` is set once a
    pod has opted in: before that nothing else matters.
    """

    def __init__(self, report: WatchReport, changed: Callable[[PodDatabase], None]) -> None:
        self.known: dict[ObjectName, PodFacts] = {}
        self.appeared = asyncio.Event()
        self.informers = tuple(FactInformer(kind, self._follow(kind.name), report) for kind in KINDS)
        self._changed = changed
        self._unread = {kind.name for kind in KINDS}
        self._conflicts: dict[Target, dict[_ConflictKey, str]] = {}

    def change(self, before: PodFacts | None, after: PodFacts | None) -> None:
        """Takes in a change of one pod, most of which have not opted in."""
        if after is not None and _has_opted_in(after):
            self.known[database_of(after.name)] = after
            self.appeared.set()
        elif before is not None and _has_opted_in(before):
            del self.known[database_of(before.name)]

    def facts(self) -> Iterable[VmFacts]:
        """The facts of all databases."""
        return [self.facts_of(pod.database) for pod in self.known.values() if pod.database is not None]

    def facts_of(self, database: PodDatabase) -> VmFacts:
        """The facts of a database, by all that is known now."""
        return database_facts(database, self.refusal(database))

    def refusal(self, database: PodDatabase) -> str:
        """The reason why the database gets no more than it has; empty if it may grow."""
        # One growth that an operator undoes may restart the database.
        if self._unread:
            return explanations.NOT_READ_YET
        if database.labels.get(_MANAGED_BY) == "kubeblocks" and database.annotations.get(ANNOTATION_RESIZE) != "true":
            return explanations.KUBEBLOCKS.format(annotation=ANNOTATION_RESIZE)
        owner = database.owner if isinstance(database, ClusterDatabase) else None
        conflicts = {} if owner is None else self._conflicts.get(owner, {})
        return next(iter(conflicts.values()), "")

    def listed(self, kind: str) -> None:
        """All objects of a kind have been read, or the cluster has none of it."""
        self._unread.discard(kind)
        for pod in self.known.values() if not self._unread else ():
            if pod.database is not None:
                self._changed(pod.database)

    def _follow(self, kind: str) -> Callable[[FactChange[Conflict]], None]:
        def follow(change: FactChange[Conflict]) -> None:
            key = _ConflictKey(kind, change.name)
            before, after = change.before, change.after
            if before is not None and before.why:
                of_target = self._conflicts[before.target]
                del of_target[key]
                # Targets come and go; empty tables would pile up.
                if not of_target:
                    del self._conflicts[before.target]
            if after is not None and after.why:
                self._conflicts.setdefault(after.target, {})[key] = after.why
            # Most autoscalers are about nothing here, and looking for their pods goes through all that have opted in.
            self._tell({conflict.target for conflict in (before, after) if conflict is not None and conflict.why})

        return follow

    def _tell(self, targets: Set[Target]) -> None:
        # All are looked at once everything has been read.
        for pod in self.known.values() if targets and not self._unread else ():
            if isinstance(pod.database, ClusterDatabase) and pod.database.owner in targets:
                self._changed(pod.database)


def _has_opted_in(pod: PodFacts) -> bool:
    return pod.database is not None or pod.unserved != ""
