"""Result of an order to sleep or to wake, from the VM's object. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from protocol.guest.sleep import ASLEEP, SLEEPING, WAKING, SleepReport, SleepState, sleep_order, sleep_report
from protocol.kubernetes.conditions import is_condition_true
from protocol.kubernetes.objects import Json, flag, labels_of, name_of, text
from protocol.names import LABEL_ENABLED
from protocol.units import Seconds
from scripts.autoscale.sleep import texts

RUNNING: Final = "Running"
_RESIZED: Final = "Scaling"
_MIGRATED: Final = frozenset({"PreMigrating", "Migrating"})
_MIB: Final = 1024**2


@dataclass(frozen=True, slots=True)
class OrderOutcome:
    """The result as one line; ``is_done`` is true if the VM reached the requested state."""

    line: str
    is_done: bool = True


def refusal(vm: Json) -> str:
    """Reason why a VM cannot be ordered to sleep; empty if it can.

    >>> refusal({"metadata": {"name": "db", "namespace": "shop"}, "status": {"phase": "Pending"}})[:33]
    'shop/db is not enabled for autosc'
    """
    name, phase = name_of(vm), text(vm, "status", "phase")
    if labels_of(vm).get(LABEL_ENABLED) != "true":
        return texts.NOT_ENABLED.format(vm=name)
    if not flag(vm, "spec", "extraNetwork", "enable"):
        return texts.NO_FLAT_ADDRESS.format(vm=name)
    # The controller keeps an order until the VM runs, has its size, and is not being migrated.
    if phase not in {RUNNING, _RESIZED, *_MIGRATED, *SLEEPING}:
        return texts.NOT_RUNNING.format(vm=name, phase=phase or "new")
    return ""


def fell_asleep(vm: Json, order: str, duration: Seconds) -> OrderOutcome | None:
    """Result of ``order`` after ``duration``; None while it is pending."""
    report, name = sleep_report(vm), name_of(vm).name
    if report.order != order:
        # The agent or another user may have written a newer order.
        return OrderOutcome(texts.REPLACED.format(name=name), is_done=False) if sleep_order(vm) != order else None
    message = report.message or texts.NO_REASON
    match report.state:
        case SleepState.REFUSED:
            return OrderOutcome(texts.REFUSED.format(name=name, message=message), is_done=False)
        case SleepState.ASLEEP if text(vm, "status", "phase") == ASLEEP:
            return OrderOutcome(_sleeps(name, report, duration))
        # A packet may have woken it between two polls.
        case SleepState.WAKING | SleepState.AWAKE | SleepState.RESTARTED:
            return OrderOutcome(texts.WOKEN_AGAIN.format(name=name, message=message))
        case _:
            return None


def sleep_timeout(vm: Json, order: str) -> str:
    """Text about a VM that did not fall asleep by ``order`` in time."""
    phase = text(vm, "status", "phase")
    if sleep_report(vm).order == order:
        return texts.STILL
    if phase == _RESIZED or is_condition_true(vm, "ResizeStalled"):
        return texts.STILL_RESIZED
    return texts.STILL_MIGRATED if phase in _MIGRATED else texts.NOT_ANSWERED


def woke(vm: Json, duration: Seconds) -> OrderOutcome | None:
    """Result of a wake ordered ``duration`` ago; None while the VM does not run."""
    report, name = sleep_report(vm), name_of(vm).name
    # The phase becomes Running before the guest runs, to reserve its room; so check the state, too.
    if text(vm, "status", "phase") != RUNNING or report.state in SLEEPING:
        return None
    if report.state == SleepState.RESTARTED:
        return OrderOutcome(texts.RESTARTED.format(name=name, message=report.message or texts.NO_REASON))
    # Prefer the controller's measurement; ours includes polling the API server.
    return OrderOutcome(texts.AWAKE.format(name=name, seconds=_seconds(report.seconds or duration)))


def already_asleep(vm: Json) -> str:
    """Line about a VM that is already asleep; empty if it is not."""
    if text(vm, "status", "phase") != ASLEEP:
        return ""
    since = sleep_report(vm).since
    return texts.SLEEPS_ALREADY.format(name=name_of(vm).name, since=since and f" since {since}")


def progress(vm: Json) -> str:
    """Progress line of a VM with a pending order."""
    name, phase, message = name_of(vm).name, text(vm, "status", "phase"), sleep_report(vm).message
    if phase == WAKING and message:
        return texts.ASKS_TO_WAKE.format(name=name, message=message)
    return texts.PROGRESS.format(name=name, phase=phase or "new")


def as_fields(vm: Json) -> Json:
    """Fields for scripts; unknown ones are null."""
    report = sleep_report(vm)
    return {
        "vm": str(name_of(vm)),
        "phase": text(vm, "status", "phase") or None,
        "state": report.state,
        "since": report.since or None,
        "message": report.message or None,
        "sessions": report.sessions if report.state else None,
        "savedBytes": report.saved or None,
        "wakeSeconds": report.seconds or None,
    }


def _sleeps(name: str, report: SleepReport, duration: Seconds) -> str:
    saved = f"{round(report.saved / _MIB)} MiB"
    return texts.SLEEPS.format(name=name, sessions=report.sessions_in_words, saved=saved, seconds=_seconds(duration))


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.0f} s"
