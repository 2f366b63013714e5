"""An agent's account of its VM (``/explain``), as far as a history keeps it, and the test for a new decision."""

from __future__ import annotations

import re
from math import ceil
from typing import Final

import msgspec

from protocol.kubernetes.objects import JsonObject, child, flag, items, text
from protocol.messages import ObjectName
from protocol.units import Bytes, QuantityError
from scheduler_plugin.history.core.samples import Amount, DecisionRecord, Millis, Size, size_at

_NUMBERS: Final = re.compile(r"[0-9.]+")
_LONGEST: Final = 300
_MOST_SENTENCES: Final = 12
_MOST_CORES: Final = 1e6


class Account(msgspec.Struct, frozen=True, gc=False):
    """An agent's account at ``at``: what it needs, what the guest uses, and what was decided in sentences."""

    at: Millis
    need: Size | None
    used_cpu: Amount | None
    used_mem: Amount | None
    said: tuple[str, ...]
    size: Size | None
    permit: Size | None
    denied: bool
    migrating: bool

    @property
    def gist(self) -> tuple[object, ...]:
        """Key by which a decision differs from the last."""
        # The sentence changes with every measurement, so only its words count; the numbers that matter are separate.
        words = _NUMBERS.sub("#", self.said[0]) if self.said else ""
        return self.size, self.permit, self.denied, self.migrating, words


def read_account(at: Millis, found: JsonObject) -> Account:
    """An agent's answer at ``/explain``; what it lacks is None.

    >>> account = read_account(5, {"because": "idle", "metrics": {"cores_busy": 0.25, "mem_used": "1Mi"}})
    >>> account.used_cpu, account.used_mem, account.said
    (250, 1024, ('idle',))
    """
    metrics = child(found, "metrics")
    return Account(
        at=at,
        need=size_at(found, "goal"),
        used_cpu=_cores(metrics.get("cores_busy")),
        used_mem=_kib(text(metrics, "mem_used")),
        said=_sentences(found),
        size=size_at(found, "size", "ordered"),
        permit=size_at(found, "permit"),
        denied=bool(child(found, "denied")),
        migrating=flag(found, "migrating"),
    )


def decision_of(vm: ObjectName, before: Account | None, account: Account) -> DecisionRecord | None:
    """The decision since the last account; None if it is the same, or none is reported."""
    if not account.said or (before is not None and before.gist == account.gist):
        return None
    return DecisionRecord(account.at, vm, "agent", account.said, account.size, account.denied)


def _sentences(found: JsonObject) -> tuple[str, ...]:
    headline = text(found, "because")
    parts = [
        f"{text(part, 'name')} needs {text(part, 'need')}: {text(part, 'because')}" for part in items(found, "parts")
    ]
    guard = text(found, "shrink_guard")
    sentences = [headline, *parts, *([f"Policy: {guard}"] if guard else [])]
    # Texts of other programs are cut, never interpreted.
    return tuple(sentence[:_LONGEST] for sentence in sentences if sentence)[:_MOST_SENTENCES]


def _cores(value: object) -> Amount | None:
    # In Python a bool is an int, and NaN fails the comparison.
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value < _MOST_CORES:
        return None
    # Rounded first, or the error of a sum of floats would turn 0.1 + 0.2 vCPUs into 301 milli-vCPUs.
    return ceil(round(value * 1000, 6))


def _kib(quantity: str) -> Amount | None:
    try:
        return -(-Bytes.parse(quantity).value // 1024)
    except QuantityError:
        return None
