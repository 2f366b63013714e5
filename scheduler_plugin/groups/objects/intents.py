"""A scaling that is decided and perhaps not carried out yet, stored in a group's status.

The intent is written before the first write to the target, and removed after the last: a process that restarts finds
in it what to finish, and finishes exactly that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from protocol.kubernetes.objects import Json, JsonObject, child, items, text, whole
from scheduler_plugin.groups.core.workload import ResourceList, SizedContainer, Workload, WorkloadDecision
from scheduler_plugin.groups.objects.targets import read_container, write_container


@dataclass(frozen=True, slots=True)
class Intent:
    """From what to what; ``at`` is when it was decided, in RFC 3339. A part that does not change is None or empty.

    ``before`` and ``after`` have the same containers, and of each the same amounts. ``hpa`` are fields of the spec of
    the HPA beside the group, which have no other writer.
    """

    at: str
    replicas: tuple[int, int] | None = None
    before: tuple[SizedContainer, ...] = ()
    after: tuple[SizedContainer, ...] = ()
    hpa: Json = field(default_factory=dict)

    @property
    def grows(self) -> bool:
        """True if a container gets more of anything than it had."""
        return any(_grows(*pair) for pair in zip(self.before, self.after, strict=True))

    def __str__(self) -> str:
        """The change in words: ``replicas 3 → 5; app: requests cpu 200m → 400m``."""
        words = [] if self.replicas is None else [f"replicas {self.replicas[0]} → {self.replicas[1]}"]
        words += [
            f"{after.name}: {_words(before, after)}" for before, after in zip(self.before, self.after, strict=True)
        ]
        words += [f"HPA {name} {value}" for name, value in self.hpa.items() if isinstance(value, int)]
        words += ["HPA metrics"] if "metrics" in self.hpa else []
        return "; ".join(words)


@dataclass(frozen=True, slots=True)
class IntentProgress:
    """The part of an intent that is left to write. ``is_overtaken``: another writer changed what it was about."""

    replicas: int | None = None
    containers: tuple[SizedContainer, ...] = ()
    is_overtaken: bool = False


def intent_of(decision: WorkloadDecision, workload: Workload, at: str, hpa: Json) -> Intent | None:
    """The intent of ``decision`` for ``workload``, with fields of an HPA; None if it changes nothing."""
    changes = decision.replicas is not None and decision.replicas != workload.replicas
    # A container that the workload no longer has cannot be written.
    after = tuple(container for container in decision.containers if workload.container(container.name) is not None)
    before = tuple(_same_amounts(workload.container(container.name) or container, container) for container in after)
    replicas = (workload.replicas, decision.replicas) if changes and decision.replicas is not None else None
    # A patch that changes nothing would only cost a write.
    if before == after:
        before = after = ()
    return Intent(at, replicas, before, after, hpa) if replicas is not None or after or hpa else None


def progress(intent: Intent, workload: Workload) -> IntentProgress:
    """Progress of the intent on ``workload`` as it is now."""
    remaining = IntentProgress()
    if intent.replicas is not None and workload.replicas != intent.replicas[1]:
        # Neither the old nor the new number: another writer has changed it since.
        if workload.replicas != intent.replicas[0]:
            return IntentProgress(is_overtaken=True)
        remaining = replace(remaining, replicas=intent.replicas[1])
    present = tuple(
        _same_amounts(container, wanted)
        for wanted in intent.after
        if (container := workload.container(wanted.name)) is not None
    )
    # Already written.
    if present == intent.after:
        return remaining
    # Neither `before` nor `after`: give up the rest and decide everything again.
    return (
        replace(remaining, containers=intent.after) if present == intent.before else IntentProgress(is_overtaken=True)
    )


def _same_amounts(container: SizedContainer, like: SizedContainer) -> SizedContainer:
    """Of ``container`` only those amounts that ``like`` has; a request that is missing is the limit."""
    return SizedContainer(container.name, _only(container.sizes, like.requests), _only(container.limits, like.limits))


def _only(amounts: ResourceList, like: ResourceList) -> ResourceList:
    return like.map(lambda resource, _: None if (amount := amounts[resource]) is None else amount.value)


def write_intent(intent: Intent) -> Json:
    """The intent as JSON."""
    body: Json = {"at": intent.at, **({"hpa": intent.hpa} if intent.hpa else {})}
    if intent.replicas is not None:
        body["replicas"] = {"from": intent.replicas[0], "to": intent.replicas[1]}
    if intent.after:
        body["containers"] = [
            {"from": write_container(before), "to": write_container(after)}
            for before, after in zip(intent.before, intent.after, strict=True)
        ]
    return body


def read_intent(status: JsonObject) -> Intent | None:
    """The intent in a group's status; None if there is none, or it cannot be read: then all is decided again."""
    body = child(status, "intent")
    if not body:
        return None
    try:
        pairs = list(_pairs(body))
    except ValueError:
        return None
    replicas = child(body, "replicas")
    steps = (whole(replicas, "from"), whole(replicas, "to")) if replicas else None
    before, after = tuple(old for old, _ in pairs), tuple(new for _, new in pairs)
    return Intent(text(body, "at"), steps, before, after, child(body, "hpa"))


def _pairs(body: JsonObject) -> Iterator[tuple[SizedContainer, SizedContainer]]:
    for pair in items(body, "containers"):
        yield read_container(child(pair, "from"), "from"), read_container(child(pair, "to"), "to")


def _grows(before: SizedContainer, after: SizedContainer) -> bool:
    pairs = ((before.requests, after.requests), (before.limits, after.limits))
    return any(
        (had := old[resource]) is None or amount.value > had.value for old, new in pairs for resource, amount in new
    )


def _words(before: SizedContainer, after: SizedContainer) -> str:
    pairs = (("requests", before.requests, after.requests), ("limits", before.limits, after.limits))
    changes = [
        f"{part} {resource} {old[resource] or 'none'} → {amount}"
        for part, old, new in pairs
        for resource, amount in new
        if old[resource] != amount
    ]
    return ", ".join(changes)
