"""Clock skew of this machine, of nodes and of Lease holders against the API server (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from protocol.kubernetes.objects import Json, items, name_of, text
from protocol.kubernetes.timestamps import parse_timestamp
from scripts.autoscale.check.facts import CheckFacts, UnavailableError, require
from scripts.autoscale.check.finding import CheckProblem, CheckResult, CheckSection, Level, Verdict, When, check_of
from scripts.autoscale.check.installed_programs import PROGRAMS

check = partial(check_of, CheckSection.CLOCKS)

SOME: Final = 5.0
MUCH: Final = 60.0
"""Seconds of skew for a warning and for a failure. Certificates and tokens are affected first, our programs last."""


@check(
    "clock-here",
    "local clock matches the API server",
    "timedatectl status; synchronize this machine's clock",
    When.ALWAYS,
)
def local_clock(facts: CheckFacts) -> Verdict:
    """The check compares the local clock with the `Date` header of a response. Ages in the output of this and other
    commands are off by the difference, and valid certificates and tokens may seem expired or not yet valid.
    """
    ahead, within = facts.server.value.ahead, facts.server.value.within
    if ahead is None:
        raise UnavailableError("the API server sends no Date header")
    within_text = f"within {max(abs(ahead), within):.0f} s"
    return _problem("", "this machine's clock", ahead, within) or CheckResult(within_text)


@check(
    "clock-nodes",
    "node clocks match the API server",
    "synchronize the clock of node {subject} (chrony, systemd-timesyncd)",
    When.ALWAYS,
)
def of_nodes(facts: CheckFacts) -> CheckResult:
    """A kubelet stamps its Lease by its own clock, and the API server records by its own when the write arrived; the
    check compares the two. A node whose clock is off rejects valid tokens and certificates.
    """
    return _of_leases(facts.node_leases.value, "the clock of node {name}")


@check(
    "clock-programs",
    "our programs' clocks match the API server",
    "kubectl -n {namespace} get lease {subject}; synchronize the clock of the holder's node",
)
def of_programs(facts: CheckFacts) -> CheckResult:
    """The same comparison for the holders of our Leases. Our programs decide nothing by wall-clock time, but
    certificates depend on it.
    """
    our_leases = {lease for program in PROGRAMS for lease in program.leases}
    # A Lease without a holder was released, and is not renewed.
    ours = [
        lease
        for lease in facts.leases.value
        if name_of(lease).name in our_leases and text(lease, "spec", "holderIdentity")
    ]
    return _of_leases(ours, "the clock of Lease {name}'s holder")


def _of_leases(leases: Sequence[Json], source: str) -> CheckResult:
    ahead = {name_of(lease).name: skew for lease in leases if (skew := lead_of(lease)) is not None}
    require(ahead, "no Lease has both timestamps")
    # `managedFields` have whole seconds.
    verdicts = (_problem(name, source.format(name=name), skew, 1.0) for name, skew in sorted(ahead.items()))
    widest = max(ahead.values(), key=abs)
    return CheckResult(f"{len(ahead)} within {max(abs(widest), 1.0):.0f} s", [*filter(None, verdicts)])


def lead_of(lease: Json) -> float | None:
    """Seconds by which the clock of the Lease's last holder is ahead of the API server's, to a second.

    None if the Lease does not have both timestamps.
    """
    # The holder writes `renewTime` by its own clock, and the API server stamps `managedFields` when it stores that.
    renewed = parse_timestamp(text(lease, "spec", "renewTime"))
    stamps = [
        stamp
        for entry in items(lease, "metadata", "managedFields")
        if "f:renewTime" in str(entry.get("fieldsV1")) and (stamp := parse_timestamp(text(entry, "time"))) is not None
    ]
    if renewed is None or not stamps:
        return None
    return renewed - max(stamps)


def _problem(subject: str, source: str, ahead: float, within: float) -> CheckProblem | None:
    # The uncertainty of the measurement must not count as skew.
    off = abs(ahead) - within
    if off < SOME:
        return None
    direction = "ahead of" if ahead > 0 else "behind"
    level = Level.FAILURE if off >= MUCH else Level.WARNING
    return CheckProblem(subject, f"{source} is {abs(ahead):.0f} s {direction} the API server's", level)
