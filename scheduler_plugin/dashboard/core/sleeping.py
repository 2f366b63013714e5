"""Sentences on a VM's sleep, for the page, ``top`` and ``explain`` (B.18). Pure."""

from __future__ import annotations

from typing import Final

from protocol.guest.sleep import SleepReport, SleepState, is_asleep, sleep_report
from protocol.kubernetes.objects import JsonObject, shortened
from protocol.kubernetes.timestamps import parse_datetime
from scheduler_plugin.dashboard import texts

_ENDS: Final = {
    SleepState.REFUSED: texts.REFUSED_SLEEP,
    SleepState.AWAKE: texts.WOKEN,
    SleepState.RESTARTED: texts.RESTARTED,
}


def sleep_sentence(vm: JsonObject) -> str:
    """Sentence on a VM that sleeps or wakes, and since when; empty if it does neither.

    >>> report = {"state": "Asleep", "since": "2026-11-27T02:10:00Z", "sessions": 3, "seconds": 0.31}
    >>> sleep_sentence({"status": {"phase": "Asleep", "sleep": report}})
    'asleep since 2026-11-27 02:10 UTC, 3 sessions open; wakes in about 0.3 s'
    """
    if not is_asleep(vm):
        return ""
    report = sleep_report(vm)
    if report.state == SleepState.WAKING:
        return texts.WAKING.format(since=_since(report), why=_because(report))
    # The last wake's duration is the estimate for the next one.
    soon = texts.WAKES_IN.format(seconds=report.seconds) if report.seconds > 0 else ""
    return texts.ASLEEP.format(since=_since(report), sessions=report.sessions_in_words, soon=soon)


def last_sleep(vm: JsonObject) -> str:
    """Sentence on how the last order to sleep of a running VM ended; empty if it had none.

    >>> last_sleep({"status": {"phase": "Running", "sleep": {"state": "Refused", "message": "autovacuum runs"}}})
    'refused the last order to sleep: autovacuum runs'
    """
    report = sleep_report(vm)
    if is_asleep(vm) or report.state not in _ENDS:
        return ""
    seconds = texts.WOKE_IN.format(seconds=report.seconds) if report.seconds > 0 else ""
    return _ENDS[report.state].format(at=_since(report, " at "), why=_because(report), seconds=seconds)


def _since(report: SleepReport, before: str = " since ") -> str:
    since = parse_datetime(report.since)
    return "" if since is None else f"{before}{since:%Y-%m-%d %H:%M} UTC"


def _because(report: SleepReport) -> str:
    return shortened(f": {report.message}") if report.message else ""
