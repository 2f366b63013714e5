"""``autoscale explain GROUP``: the reasons for a group's replica count and sizes, in sentences (S1.11)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from protocol.kubernetes.api import Tolerating
from protocol.kubernetes.objects import Json, child, items, text, texts_at, whole
from protocol.kubernetes.refusals import RefusalKind
from protocol.kubernetes.resources import HVPAS, TORTOISES, VM_GROUPS, Resource
from protocol.messages import ObjectName
from scripts.autoscale.cluster_flags import vm_name
from scripts.autoscale.clusters import DEFAULT_NAMESPACE
from scripts.autoscale.site import Site

KINDS: Final = {
    "hvpa": HVPAS,
    "tortoise": TORTOISES,
    "virtualmachinegroup": VM_GROUPS,
    "vmg": VM_GROUPS,
}
"""What a group's kind may be called."""

_SILENT: Final = "The groups' program does not answer"
_PERHAPS: Final = "it may be starting, or it does not run in this cluster."


def group_name(given: str, default: str = DEFAULT_NAMESPACE) -> tuple[Resource, ObjectName] | None:
    """The group of ``KIND/NAME`` or ``NAMESPACE/KIND/NAME``; None if the text names none.

    >>> group_name("hvpa/web")[0].kind, str(group_name("shop/tortoise/web")[1]), group_name("shop/db")
    ('Hvpa', 'shop/web', None)
    """
    parts = given.split("/")
    if len(parts) not in (2, 3) or parts[-2].lower() not in KINDS:
        return None
    namespace = f"{parts[0]}/" if len(parts) == 3 else ""
    return KINDS[parts[-2].lower()], vm_name(f"{namespace}{parts[-1]}", default)


async def find_group(site: Site, name: ObjectName) -> tuple[Resource, ObjectName] | None:
    """The group of that name, of whichever kind has one. Raises as ``ApiClient.get``."""
    # Two names stand for VirtualMachineGroup; a dict asks for each kind once.
    for kind in dict.fromkeys(KINDS.values()):
        # Not found also means that the kind is not installed.
        with Tolerating(RefusalKind.NOT_FOUND):
            await site.client.get(kind, name)
            return kind, name
    return None


def group_story(found: Json | None, silence: str = "") -> Iterator[str]:
    """The whole answer as lines of text; ``silence`` is why there is none, if that is known."""
    if found is None:
        yield f"{_SILENT}: {silence or _PERHAPS}"
        return
    yield from _target(found)
    yield from _recommended(child(found, "recommended"))
    yield from _scaling(child(found, "scaling"))
    yield from (f"  {line}" for line in texts_at(found, "explanation"))
    if last := child(found, "lastScaled"):
        yield f"  Last scaled at {text(last, 'at')}: {_change(last)}."
    if begun := child(found, "underWay"):
        yield f"  UNDER WAY since {text(begun, 'at')}: {_change(begun)}."
    for hold in items(found, "kept"):
        why = f": {text(hold, 'message')}" if text(hold, "message") else ""
        stays = f"{text(hold, 'subject')} stays {hold.get('kept') or 'unset'}"
        yield f"  Kept back: {stays} although {hold.get('wanted')} is wanted, by the rule {text(hold, 'rule')}{why}"
    yield from _members(found)
    yield from _conditions(found)


def _target(found: Json) -> Iterator[str]:
    target = child(found, "target")
    # The group's own problem says more than that of its target.
    if problem := text(found, "problem") or text(target, "problem"):
        yield f"{text(found, 'group')} scales nothing: {problem}."
        return
    if not target:
        yield f"{text(found, 'group')}:"
        return
    has = f"{whole(target, 'replicas')} replicas, {whole(target, 'ready')} of them ready"
    yield f"{text(found, 'group')} scales {text(target, 'name')}: {has}."
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
            count = f"It has {replicas} replica{'' if replicas == 1 else 's'}, and how many it needs is not known"
        else:
            count = f"It wants {wanted} replicas and has {replicas}"
        yield f"  {count}{rule}: {text(scaling, 'message')}."


def _members(found: Json) -> Iterator[str]:
    for member in items(found, "members"):
        why = f": {text(member, 'message')}" if text(member, "message") else ""
        where = f" on {text(member, 'node')}" if text(member, "node") else ""
        yield f"  {text(member, 'name')} ({text(member, 'role')}) {text(member, 'state')}{where}{why}"


def _conditions(found: Json) -> Iterator[str]:
    for condition in items(found, "conditions"):
        if text(condition, "message"):
            yield f"  {text(condition, 'type')} is {text(condition, 'status')}: {text(condition, 'message')}"


def _change(intent: Json) -> str:
    replicas, words = child(intent, "replicas"), []
    if replicas:
        words.append(f"replicas {replicas.get('from')} → {replicas.get('to')}")
    for container in items(intent, "containers"):
        old, new = child(container, "from", "resources", "requests"), child(container, "to", "resources", "requests")
        words.append(f"{text(container, 'to', 'name')} {_amounts(old) or 'unset'} → {_amounts(new)}")
    words += [f"HPA {name} {value}" for name, value in child(intent, "hpa").items() if isinstance(value, int)]
    return "; ".join(words) or "metrics of the HPA"


def _sizes(container: Json) -> Json:
    return {name: value for name, value in container.items() if name != "name"}


def _amounts(amounts: Json) -> str:
    return ", ".join(f"{value} {name}" for name, value in amounts.items())
