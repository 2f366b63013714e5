"""Postgres pods that are resized in place, as facts for the ledger (B.7)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Set
from typing import Final, NamedTuple

from msgspec.structs import asdict

from protocol.kubernetes.objects import JsonObject, controller_of, number, text
from protocol.messages import ObjectName
from protocol.names import ANNOTATION_RESIZE, LABEL_WEIGHT
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
    """A postgres pod and its controller, if it has one."""

    owner: Target | None = None


def read_database(pod: JsonObject) -> ClusterDatabase:
    """Parse an opted-in pod. Raises ``InvalidObjectError``."""
    database = parse_pod_database(pod)
    # Drop other annotations and labels: they may have hundreds of kilobytes on thousands of pods.
    switch = {name: text for name, text in database.annotations.items() if name == ANNOTATION_RESIZE}
    labels = {name: text for name, text in database.labels.items() if name in {_MANAGED_BY, LABEL_WEIGHT}}
    return ClusterDatabase(**asdict(database) | {"annotations": switch, "labels": labels}, owner=_owner(pod, database))


def _owner(pod: JsonObject, database: PodDatabase) -> Target | None:
    owner = controller_of(pod)
    if not owner:
        return None
    kind, name = text(owner, "kind"), text(owner, "name")
    if kind == "ReplicaSet" and (suffix := database.labels.get(_TEMPLATE_HASH)):
        # Derive the Deployment from the ReplicaSet's name instead of reading ReplicaSets.
        kind, name = "Deployment", name.removesuffix(f"-{suffix}")
    return Target(database.name.namespace, text(owner, "apiVersion").partition("/")[0], kind, name)


def database_facts(database: PodDatabase, refused: str = "") -> VmFacts:
    """The facts for the ledger; ``refused`` is why the database must not grow, empty if it may."""
    return VmFacts(
        name=database.name,
        uid=database.uid,
        version=number(database.resource_version),
        maximum=database.use if refused else database.bounds.max,
        use=database.use,
        # Also while postgres restarts: the kubelet keeps the allocation.
        actual=database.actual,
        pod=ObjectName(database.name.namespace, database.pod_name or ""),
        stays_because=explanations.ORDINARY_POD,
        phase=database.phase,
        weight=weight_of(database) or DEFAULT_WEIGHT,
        is_pod=True,
        is_seen=database.is_seen,
        refused=refused,
    )


class _ConflictKey(NamedTuple):
    kind: str
    name: ObjectName


class PodDatabases:
    """Opted-in pods, and the objects that conflict with resizing them.

    ``known`` has their facts by database name, including pods that cannot be resized. It calls ``changed`` for each
    database whose ``refusal`` changed because of another object. The first opted-in pod sets ``appeared``; before that
    nothing watches the conflicting kinds.
    """

    def __init__(self, report: WatchReport, changed: Callable[[PodDatabase], None]) -> None:
        self.known: dict[ObjectName, PodFacts] = {}
        self.appeared = asyncio.Event()
        self.informers = tuple(FactInformer(kind, self._follow(kind.name), report) for kind in KINDS)
        self._changed = changed
        self._unread = {kind.name for kind in KINDS}
        self._conflicts: dict[Target, dict[_ConflictKey, str]] = {}

    def change(self, before: PodFacts | None, after: PodFacts | None) -> None:
        """Apply a change of one pod; most have not opted in."""
        if after is not None and _has_opted_in(after):
            self.known[database_of(after.name)] = after
            self.appeared.set()
        elif before is not None and _has_opted_in(before):
            del self.known[database_of(before.name)]

    def facts(self) -> Iterable[VmFacts]:
        """Facts of all databases."""
        return [self.facts_of(pod.database) for pod in self.known.values() if pod.database is not None]

    def facts_of(self, database: PodDatabase) -> VmFacts:
        """Present facts of a database."""
        return database_facts(database, self.refusal(database))

    def refusal(self, database: PodDatabase) -> str:
        """The reason why the database must not grow; empty if it may."""
        # One growth that an operator reverts may restart the database.
        if self._unread:
            return explanations.NOT_READ_YET
        if database.labels.get(_MANAGED_BY) == "kubeblocks" and database.annotations.get(ANNOTATION_RESIZE) != "true":
            return explanations.KUBEBLOCKS.format(annotation=ANNOTATION_RESIZE)
        owner = database.owner if isinstance(database, ClusterDatabase) else None
        conflicts = {} if owner is None else self._conflicts.get(owner, {})
        return next(iter(conflicts.values()), "")

    def listed(self, kind: str) -> None:
        """Record that a kind was listed, or that the cluster lacks it."""
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
                # Remove empty entries: targets come and go.
                if not of_target:
                    del self._conflicts[before.target]
            if after is not None and after.why:
                self._conflicts.setdefault(after.target, {})[key] = after.why
            # Finding their pods scans all opted-in pods, and most autoscalers target none.
            self._report({conflict.target for conflict in (before, after) if conflict is not None and conflict.why})

        return follow

    def _report(self, targets: Set[Target]) -> None:
        # Before all kinds are listed, ``listed`` handles all pods at the end.
        for pod in self.known.values() if targets and not self._unread else ():
            if isinstance(pod.database, ClusterDatabase) and pod.database.owner in targets:
                self._changed(pod.database)


def _has_opted_in(pod: PodFacts) -> bool:
    return pod.database is not None or pod.resize_problem != ""
