"""Who leads: each program with a Lease has one holder that lives and renews (pure)."""

from __future__ import annotations

from typing import Final

from protocol.kubernetes.objects import Json, child, items, name_of, text, whole
from protocol.kubernetes.timestamps import parse_timestamp
from scripts.autoscale.check.facts import CheckFacts
from scripts.autoscale.check.finding import CheckProblem, CheckResult
from scripts.autoscale.check.installed_programs import (
    LEADING,
    PROGRAMS,
    SCHEDULER,
    Program,
    installed,
    is_told,
    leads,
    pods_of,
)
from scripts.autoscale.check.looks import SiteObservations, UnseenError

Objects = dict[str, Json]

SPARE: Final = 6.0
"""Seconds beyond its duration by which a renewal may be late before it is reported."""


def are_held(facts: CheckFacts) -> CheckResult:
    """Check that each Lease has a holder that is a running pod and renews it."""
    leases, here = {name_of(each).name: each for each in facts.leases.value}, installed(facts)
    wanted = [(each, name) for each in PROGRAMS for name in each.leases if _is_sought(facts, each, name, here, leases)]
    if not wanted:
        raise UnseenError("no program that is installed has a Lease")
    problems = [why for each, name in wanted if (why := _wrong(facts, each, name, leases.get(name))) is not None]
    led = [f"{name}: {_holder(leases[name])}" for _, name in wanted if name in leases]
    return CheckResult("; ".join(led), problems)


def holders_lead(facts: CheckFacts) -> CheckResult:
    """Check that the replica that holds a Lease acts; one that was won just now may still prepare."""
    here, problems, asked = installed(facts), list[CheckProblem](), list[str]()
    leases = {name_of(each).name: each for each in facts.leases.value}
    for program in PROGRAMS:
        if not program.leases or program.name not in here or program.leases[0] not in leases:
            continue
        lease = leases[program.leases[0]]
        holder = next((pod for pod in _replicas(facts, program) if _is_holder(lease, pod)), None)
        said = None if holder is None else _says_leading(facts, holder)
        asked += [] if said is None or holder is None else [holder]
        if said is False and _held_for(lease) > SPARE:
            told = f"{holder} of {program.name} holds the Lease {program.leases[0]} and does not lead"
            problems.append(CheckProblem(str(holder), f"{told}: no other can take its place"))
    if not asked:
        raise UnseenError("no holder of a Lease says whether it leads")
    return CheckResult(", ".join(asked), problems)


def _held_for(lease: Json) -> float:
    """Seconds from winning to the last renewal, both by the holder's calendar; 0 if it does not say."""
    won, renewed = (parse_timestamp(text(lease, "spec", key)) for key in ("acquireTime", "renewTime"))
    return 0.0 if won is None or renewed is None else renewed - won


def _is_sought(facts: CheckFacts, program: Program, lease: str, here: Objects, leases: Objects) -> bool:
    """Return True if there must be such a Lease: there is, or the replicas all stand by.

    A scheduler that acts alone leads without one, and an old one that is left then is no matter.
    """
    template = child(here.get(SCHEDULER, {}), "spec", "template")
    if program.name == SCHEDULER and program.name in here and not is_told(template, "--lease"):
        return False
    if program.name not in here or lease in leases or lease != program.leases[0]:
        return program.name in here and lease in leases
    told = [_says_leading(facts, pod) for pod in _replicas(facts, program)]
    return False in told and True not in told


def _replicas(facts: CheckFacts, program: Program) -> list[str]:
    return [name_of(pod).name for pod in pods_of(facts, program.name)]


def _says_leading(facts: CheckFacts, pod: str) -> bool | None:
    """Leadership that the replica reports; None if it reports none."""
    look = facts.metrics.get(pod)
    says = isinstance(look, SiteObservations) and any(each.name.endswith(LEADING) for each in look.value)
    return leads(facts, pod) if says else None


def _holder(lease: Json) -> str:
    return text(lease, "spec", "holderIdentity")


def _is_holder(lease: Json, pod: str) -> bool:
    holder = _holder(lease)
    return holder == pod or holder.startswith((f"{pod}-", f"{pod}_"))


def _wrong(facts: CheckFacts, program: Program, name: str, lease: Json | None) -> CheckProblem | None:
    if lease is None:
        return CheckProblem(name, f"there is no Lease {name}: no replica of {program.name} leads")
    holder, told = _holder(lease), f"the Lease {name}"
    if not holder:
        return CheckProblem(name, f"{told} has no holder: no replica of {program.name} leads")
    if not any(_is_holder(lease, pod) for pod in _replicas(facts, program)):
        return CheckProblem(name, f"{told} is held by {holder}, which is no running pod of {program.name}")
    age = _age(facts, lease)
    limit = max(whole(lease, "spec", "leaseDurationSeconds"), 1) + SPARE
    if age is not None and age > limit:
        return CheckProblem(name, f"{told} was last renewed {age:.0f} s ago by {holder}: it hangs, or is cut off")
    return None


def _age(facts: CheckFacts, lease: Json) -> float | None:
    """Since when nothing was written, by the API server's calendar: the holder's own may be wrong."""
    stamps = (parse_timestamp(text(each, "time")) for each in items(lease, "metadata", "managedFields"))
    written = [each for each in stamps if each is not None]
    at = max(written) if written else parse_timestamp(text(lease, "spec", "renewTime"))
    return None if at is None else facts.server_now - at


def one_leads(facts: CheckFacts) -> CheckResult:
    """Check that of a program's replicas at most one says that it leads."""
    here, problems, led = installed(facts), list[CheckProblem](), list[str]()
    for program in PROGRAMS:
        if not program.leases or program.name not in here:
            continue
        leaders = sorted(pod for pod in _replicas(facts, program) if leads(facts, pod))
        led += leaders
        if len(leaders) > 1:
            said = f"{' and '.join(leaders)} of {program.name} both say that they lead"
            problems.append(CheckProblem(leaders[0], said))
    if not led:
        raise UnseenError("no replica says whether it leads")
    return CheckResult(", ".join(sorted(led)), problems)
