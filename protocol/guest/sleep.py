"""Sleep of a VM: the order in its annotation and the report in its status (B.18).

A sleeping VM has no QEMU process and reserves nothing. Its runner keeps its memory in a file and responds on the
network in its place. The phase is ``Asleep`` until the guest is needed, then ``Waking`` until its agent has a permit
for its size on wake and the guest runs again.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from enum import StrEnum
from ipaddress import IPv4Network
from typing import Final

import msgspec

from protocol.kubernetes.objects import annotations_of, child, text
from protocol.names import ANNOTATION_SLEEP
from protocol.units import ZERO, QuantityError, Resources

ASLEEP: Final = "Asleep"
WAKING: Final = "Waking"
"""Phases of a VM."""

SLEEPING: Final = frozenset({ASLEEP, WAKING})
"""Phases without a running guest, from which it resumes with all its sessions."""

MAX_ORDER_LENGTH: Final = 128
"""Maximum length of an order in characters; a longer one is ignored."""

MAX_IGNORED: Final = 16
"""Maximum entries of the annotation ``sleep-ignores``."""


class SleepState(StrEnum):
    """State of the last order."""

    REFUSED = "Refused"
    """The guest was busy and keeps running."""
    ASLEEP = ASLEEP
    WAKING = WAKING
    AWAKE = "Awake"
    """The guest resumed with its sessions."""
    RESTARTED = "Restarted"
    """The saved memory could not be restored, and the guest booted from its disk."""


class SleepReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """``status.sleep`` of a VM. ``order`` is the last order carried out or refused; ``since`` is when ``state`` was
    reached (RFC 3339). ``message`` is the reason of a refusal, the source of a wake, or the reason of a boot.
    ``sessions`` were open when the VM fell asleep, ``saved`` is the size of the saved memory in bytes, and ``seconds``
    the duration of the last wake. ``cpus`` and ``memory`` are the guest's size when it fell asleep (quantities).
    """

    order: str = ""
    state: SleepState | None = None
    since: str = ""
    message: str = ""
    sessions: int = 0
    saved: int = 0
    seconds: float = 0.0
    cpus: str = ""
    memory: str = ""

    @property
    def size(self) -> Resources:
        """Size of the guest when it fell asleep; zero if it is unknown.

        >>> str(SleepReport(cpus="1500m", memory="2Gi").size)
        '1500m cpu, 2Gi'
        """
        try:
            return Resources.parse(self.cpus, self.memory)
        except QuantityError:
            return ZERO

    @property
    def sessions_in_words(self) -> str:
        """``sessions`` as text."""
        return "1 session" if self.sessions == 1 else f"{self.sessions} sessions"


def sleep_order(vm: Mapping[str, object]) -> str:
    """The order to sleep on a VirtualMachine object; empty if there is none.

    >>> sleep_order({"metadata": {"annotations": {"autoscaling.neon.tech/sleep": "2026-11-27T02:10:00Z"}}})
    '2026-11-27T02:10:00Z'
    """
    order = annotations_of(vm).get(ANNOTATION_SLEEP, "")
    return order if len(order) <= MAX_ORDER_LENGTH else ""


def sleep_report(vm: Mapping[str, object]) -> SleepReport:
    """``status.sleep`` of a VirtualMachine object; empty if missing or invalid.

    >>> report = sleep_report({"status": {"sleep": {"order": "a", "state": "Asleep", "sessions": 3}}})
    >>> report.state == "Asleep", report.sessions
    (True, 3)
    """
    try:
        return msgspec.convert(dict(child(vm, "status", "sleep")), SleepReport)
    except (msgspec.ValidationError, RecursionError):
        return SleepReport()


def is_asleep(vm: Mapping[str, object]) -> bool:
    """Return True if a VirtualMachine object is asleep or waking: healthy, without a running guest.

    >>> is_asleep({"status": {"phase": "Waking"}}), is_asleep({"status": {"phase": "Running"}})
    (True, False)
    """
    return text(vm, "status", "phase") in SLEEPING


def ignored_networks(text: str) -> tuple[IPv4Network, ...]:
    """Parse the annotation ``sleep-ignores``, at most ``MAX_IGNORED`` entries. Invalid entries are skipped, so that in
    doubt packets wake the VM.

    >>> [str(network) for network in ignored_networks("10.1.2.3, 10.4.0.0/16, the probes")]
    ['10.1.2.3/32', '10.4.0.0/16']
    """
    networks: list[IPv4Network] = []
    for entry in text.split(",", MAX_IGNORED)[:MAX_IGNORED]:
        with suppress(ValueError):
            # Accept host bits: 10.4.0.7/16 means 10.4.0.0/16.
            networks.append(IPv4Network(entry.strip(), strict=False))
    return tuple(networks)


def sleep_order_patch(order: str | None) -> dict[str, object]:
    """Merge patch that orders a VM to sleep; None removes the order, which wakes the VM.

    >>> sleep_order_patch(None)
    {'metadata': {'annotations': {'autoscaling.neon.tech/sleep': None}}}
    """
    return {"metadata": {"annotations": {ANNOTATION_SLEEP: order}}}
