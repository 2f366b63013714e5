"""``autoscale explain GROUP``: the reasons for a group's replica count and sizes, in sentences (S1.11)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from protocol.kubernetes.api import Tolerating
from protocol.kubernetes.objects import Json, child, integer, items, text, texts_at
from protocol.kubernetes.refusals import RefusalKind
from protocol.kubernetes.resources import HVPAS, TORTOISES, VM_GROUPS, Resource
from protocol.messages import ObjectName
from scripts.autoscale.cluster_flags import parse_vm
from scripts.autoscale.clusters import DEFAULT_NAMESPACE
from scripts.autoscale.site import Site

KINDS: Final = {
    "hvpa": HVPAS,
    "tortoise": TORTOISES,
    "virtualmachinegroup": VM_GROUPS,
    "vmg": VM_GROUPS,
}
"""Group kinds by the names that the command accepts."""

_POSSIBLE_REASON: Final = "it may be starting, or not installed"


def group_name(argument: str, default: str = DEFAULT_NAMESPACE) -> tuple[Resource, ObjectName] | None:
    """Parses ``KIND/NAME`` or ``NAMESPACE/KIND/NAME``; None for anything else.

    >>> group_name("hvpa/web")[0].kind, str(group_name("shop/tortoise/web")[1]), group_name("shop/db")
    ('Hvpa', 'shop/web', None)
    """
    parts = argument.split("/")
    if len(parts) not in (2, 3) or parts[-2].lower() not in KINDS:
        return None
    namespace = f"{parts[0]}/" if len(parts) == 3 else ""
    return KINDS[parts[-2].lower()], parse_vm(f"{namespace}{parts[-1]}", default)


async def find_group(site: Site, name: ObjectName) -> tuple[Resource, ObjectName] | None:
    """Finds a group of that name, of any kind. Raises like ``ApiClient.get``."""
    # VirtualMachineGroup has two names; a dict asks for each kind once.
    for kind in dict.fromkeys(KINDS.values()):
        # Not found also means that the kind is not installed.
        with Tolerating(RefusalKind.NOT_FOUND):
            await site.client.get(kind, name)
            return kind, name
    return None


def no_response(error: str = "") -> str:
    """The message if the groups program does not respond; ``error`` is the reason, if known.

    >>> no_response("timed out")
    'the groups program does not respond (timed out); a local cluster runs it with autoscale local up --groups'
    """
    reason = error or _POSSIBLE_REASON
    return f"the groups program does not respond ({reason}); a local cluster runs it with autoscale local up --groups"


def group_explanation(explanation: Json) -> Iterator[str]:
    """Yields the program's answer as lines of text."""
    yield from _target(explanation)
    yield from _recommended(child(explanation, "recommended"))
    yield from _scaling(child(explanation, "scaling"))
    yield from (f"  {line}" for line in texts_at(explanation, "explanation"))
    if last := child(explanation, "lastScaled"):
        yield f"  Last scaled at {text(last, 'at')}: {_change(last)}."
    if begun := child(explanation, "underWay"):
        yield f"  IN PROGRESS since {text(begun, 'at')}: {_change(begun)}."
    for hold in items(explanation, "kept"):
        why = f": {text(hold, 'message')}" if text(hold, "message") else ""
        stays = f"{text(hold, 'subject')} stays at {hold.get('kept') or 'unset'}"
        yield f"  Held back: {stays} instead of {hold.get('wanted')} (rule {text(hold, 'rule')}){why}"
    yield from _members(explanation)
    for condition in items(explanation, "conditions"):
        if text(condition, "message"):
            yield f"  {text(condition, 'type')} is {text(condition, 'status')}: {text(condition, 'message')}"


def _target(explanation: Json) -> Iterator[str]:
    target = child(explanation, "target")
    # The group's own problem is more specific than its target's.
    if problem := text(explanation, "problem") or text(target, "problem"):
        yield f"{text(explanation, 'group')} scales nothing: {problem}."
        return
    if not target:
        yield f"{text(explanation, 'group')}:"
        return
    has = f"{integer(target, 'replicas')} replicas, {integer(target, 'ready')} of them ready"
    yield f"{text(explanation, 'group')} scales {text(target, 'name')}: {has}."
    for container in items(target, "containers"):
        for part in ("requests", "limits"):
            if amounts := child(container, "resources", part):
                yield f"  {text(container, 'name')} {part} {_amounts(amounts)}."


def _recommended(recommended: Json) -> Iterator[str]:
    if "replicas" in recommended:
        # None: the HPA exists and has decided nothing yet.
        replicas, bounds = recommended["replicas"], child(recommended, "bounds")
        between = f" (between {bounds.get('min')} and {bounds.get('max')})" if bounds else ""
        yield f"  The HPA recommends {'nothing yet' if replicas is None else f'{replicas} replicas{between}'}."
    if "containers" in recommended:
        sizes = [
            f"{_amounts(_sizes(container))} for {text(container, 'name')}"
            for container in items(recommended, "containers")
        ]
        yield f"  The VPA recommends {', '.join(sizes) or 'nothing yet'}."


def _scaling(scaling: Json) -> Iterator[str]:
    if scaling:
        rule = f" (rule {text(scaling, 'rule')})" if text(scaling, "rule") else ""
        wanted, replicas = scaling.get("wanted"), scaling.get("replicas")
        if wanted is None:
            count = f"It has {replicas} replica{'' if replicas == 1 else 's'}; the number needed is unknown"
        else:
            count = f"It needs {wanted} replicas and has {replicas}"
        yield f"  {count}{rule}: {text(scaling, 'message')}."


def _members(explanation: Json) -> Iterator[str]:
    for member in items(explanation, "members"):
        why = f": {text(member, 'message')}" if text(member, "message") else ""
        where = f" on {text(member, 'node')}" if text(member, "node") else ""
        yield f"  {text(member, 'name')} ({text(member, 'role')}) {text(member, 'state')}{where}{why}"


def _change(intent: Json) -> str:
    replicas, words = child(intent, "replicas"), []
    if replicas:
        words.append(f"replicas {replicas.get('from')} → {replicas.get('to')}")
    for container in items(intent, "containers"):
        old, new = child(container, "from", "resources", "requests"), child(container, "to", "resources", "requests")
        words.append(f"{text(container, 'to', 'name')} {_amounts(old) or 'unset'} → {_amounts(new)}")
    words += [f"HPA {name} {value}" for name, value in child(intent, "hpa").items() if isinstance(value, int)]
    return "; ".join(words) or "HPA metrics"


def _sizes(container: Json) -> Json:
    return {name: value for name, value in container.items() if name != "name"}


def _amounts(amounts: Json) -> str:
    return ", ".join(f"{value} {name}" for name, value in amounts.items())
