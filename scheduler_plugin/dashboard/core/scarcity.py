"""Sentences on scarce room (B.17): what denied databases wait for, and what VMs have freed for others. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from protocol.kubernetes.objects import JsonObject, child, items, text, texts_at
from protocol.kubernetes.timestamps import parse_datetime
from protocol.units import ZERO, QuantityError, Resources
from scheduler_plugin.texts.amounts import amounts_text


def waiting_sentence(source: JsonObject) -> str:
    """Sentence on what a pod's database was ``denied``, and how much is ``promised``; empty if nothing was denied.

    Schedulers of earlier releases report no promises.

    >>> waiting_sentence({"denied": {"cpu": "2", "mem": "0"}, "promised": {"cpu": "1500m", "mem": "0"}})
    'waiting for 2 vCPU, 1.5 vCPU promised by neighbours'
    """
    denied, promised = _amounts(child(source, "denied")), _amounts(child(source, "promised"))
    promise = f", {amounts_text(promised)} promised by neighbours" if "promised" in source else ""
    return f"waiting for {amounts_text(denied)}{promise}" if denied.any else ""


def node_waiting_sentence(node: JsonObject) -> str:
    """Sentence on the denied databases of a node; empty if there are none."""
    waiting = sum(_amounts(child(pod, "denied")).any for pod in items(node, "pods"))
    # From the node's sums, because a promise counts once.
    sentence = waiting_sentence(node)
    return f"{waiting} database{'s' if waiting > 1 else ''} {sentence}" if waiting and sentence else ""


def freed_room_sentence(source: JsonObject, namespace: str) -> str:
    """Sentence on the room that a database of ``namespace`` has freed for others; empty if none.

    The time is local, with its zone, because the reader may be in another one.
    """
    freed = child(source, "gaveBack")
    at = parse_datetime(freed.get("at"))
    if at is None:
        return ""
    to = [name.removeprefix(f"{namespace}/") for name in texts_at(freed, "to")]
    return f"gave back {amounts_text(_amounts(child(freed, 'amount')))} to {_listed(to)} at {at.astimezone():%H:%M %Z}"


def _listed(names: Sequence[str]) -> str:
    *others, last = names or ("its nearly full node",)
    return f"{', '.join(others)} and {last}" if others else last


def _amounts(source: JsonObject) -> Resources:
    try:
        return Resources.parse(text(source, "cpu") or 0, text(source, "mem") or 0)
    except QuantityError:
        return ZERO
