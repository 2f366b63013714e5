"""The Leases of programs with several replicas, and the EndpointSlices of the leading scheduler (pure)."""

from __future__ import annotations

from functools import partial
from typing import Final

from protocol.kubernetes.objects import Json, child, integer, items, name_of, text
from protocol.kubernetes.timestamps import parse_timestamp
from scripts.autoscale.check.facts import CheckFacts, require
from scripts.autoscale.check.finding import CheckProblem, CheckResult, CheckSection, check_of
from scripts.autoscale.check.installed_programs import (
    LEADING,
    PROGRAMS,
    SCHEDULER,
    Program,
    argument_values,
    by_name,
    has_argument,
    installed,
    is_leader,
    pods_of,
    samples_of,
)

check = partial(check_of, CheckSection.LEASES)

Objects = dict[str, Json]

SPARE: Final = 6.0
"""Seconds beyond its duration by which a renewal may be late before it is reported."""


@check(
    "leases-held",
    "each Lease is held and renewed",
    "kubectl -n {namespace} get lease {subject} -o yaml; if its holder is gone for good: kubectl -n {namespace}"
    " delete lease {subject}",
)
def leases_held(facts: CheckFacts) -> CheckResult:
    """Of a program's replicas, only the holder of the Lease acts. If the holder is gone and the Lease has not expired,
    or if the holder hangs, nothing acts.
    """
    leases, here = by_name(facts.leases.value), installed(facts)
    wanted = [
        (program, name)
        for program in PROGRAMS
        for name in program.leases
        if _is_expected(facts, program, name, here, leases)
    ]
    require(wanted, "no installed program has a Lease")
    problems = [*filter(None, (_wrong(facts, program, name, leases.get(name)) for program, name in wanted))]
    holders = [f"{name}: {_holder(leases[name])}" for _, name in wanted if name in leases]
    return CheckResult("; ".join(holders), problems)


@check(
    "leases-acted-on",
    "the holder of each Lease acts",
    "kubectl -n {namespace} logs {subject} --all-containers --tail=50; if the log shows no reason: kubectl -n"
    " {namespace} delete pod {subject}",
)
def holders_lead(facts: CheckFacts) -> CheckResult:
    """A replica holds and renews the Lease but has not started to lead: it cannot list the cluster, or waits for a
    scheduler without a Lease to stop. No other replica can take over.
    """
    here, problems, reporting = installed(facts), list[CheckProblem](), list[str]()
    leases = by_name(facts.leases.value)
    for program in PROGRAMS:
        if not program.leases or program.name not in here or program.leases[0] not in leases:
            continue
        lease = leases[program.leases[0]]
        holder = next((pod for pod in _replicas(facts, program) if _is_holder(lease, pod)), None)
        is_leading = None if holder is None else _reports_leading(facts, holder)
        reporting += [] if is_leading is None or holder is None else [holder]
        # A new leader first lists the cluster, so allow some seconds after it acquires the Lease.
        if is_leading is False and _held_for(lease) > SPARE:
            claim = f"{holder} of {program.name} holds the Lease {program.leases[0]} but does not lead"
            problems.append(CheckProblem(str(holder), f"{claim}; no other replica can take over"))
    require(reporting, "no Lease holder reports whether it leads")
    return CheckResult(", ".join(reporting), problems)


def _held_for(lease: Json) -> float:
    """Seconds from acquiring the Lease to its last renewal, by the holder's clock; 0 if unknown."""
    acquired, renewed = (parse_timestamp(text(lease, "spec", key)) for key in ("acquireTime", "renewTime"))
    return 0.0 if acquired is None or renewed is None else renewed - acquired


def _is_expected(facts: CheckFacts, program: Program, lease: str, here: Objects, leases: Objects) -> bool:
    """Return True if the Lease exists, or should because replicas stand by and none leads."""
    # A scheduler without `--lease` ignores a Lease that an earlier installation left.
    template = child(here.get(SCHEDULER, {}), "spec", "template")
    if program.name == SCHEDULER and program.name in here and not has_argument(template, "--lease"):
        return False
    if program.name not in here or lease in leases or lease != program.leases[0]:
        return program.name in here and lease in leases
    leadership = [_reports_leading(facts, pod) for pod in _replicas(facts, program)]
    return False in leadership and True not in leadership


def _replicas(facts: CheckFacts, program: Program) -> list[str]:
    return [name_of(pod).name for pod in pods_of(facts, program.name)]


def _reports_leading(facts: CheckFacts, pod: str) -> bool | None:
    """Return True if the replica reports that it leads; None if it reports nothing."""
    reports = any(sample.name.endswith(LEADING) for sample in samples_of(facts, pod))
    return is_leader(facts, pod) if reports else None


def _holder(lease: Json) -> str:
    return text(lease, "spec", "holderIdentity")


def _is_holder(lease: Json, pod: str) -> bool:
    holder = _holder(lease)
    # Holders may add a suffix to the pod's name: kube-scheduler appends `_` and a UUID.
    return holder == pod or holder.startswith((f"{pod}-", f"{pod}_"))


def _wrong(facts: CheckFacts, program: Program, name: str, lease: Json | None) -> CheckProblem | None:
    if lease is None:
        return CheckProblem(name, f"Lease {name} not found: no replica of {program.name} leads")
    holder, subject = _holder(lease), f"the Lease {name}"
    if not holder:
        return CheckProblem(name, f"{subject} has no holder: no replica of {program.name} leads")
    if not any(_is_holder(lease, pod) for pod in _replicas(facts, program)):
        return CheckProblem(name, f"{subject} is held by {holder}, which is not a running pod of {program.name}")
    age = _age(facts, lease)
    limit = max(integer(lease, "spec", "leaseDurationSeconds"), 1) + SPARE
    if age is not None and age > limit:
        return CheckProblem(
            name, f"{subject} was last renewed {age:.0f} s ago by {holder}, which hangs or cannot reach the API server"
        )
    return None


def _age(facts: CheckFacts, lease: Json) -> float | None:
    """Seconds since the last write, by the API server's clock."""
    stamps = (parse_timestamp(text(entry, "time")) for entry in items(lease, "metadata", "managedFields"))
    written = [stamp for stamp in stamps if stamp is not None]
    # `renewTime` is by the holder's own clock, which may be wrong.
    at = max(written) if written else parse_timestamp(text(lease, "spec", "renewTime"))
    return None if at is None else facts.server_now - at


@check("leases-one-leader", "one replica leads", "kubectl -n {namespace} delete pod {subject}")
def one_leads(facts: CheckFacts) -> CheckResult:
    """Two replicas of a program report that they lead. Object versions fence their writes, so nothing is lost.
    Delete one of them.
    """
    here, problems, leading_pods = installed(facts), list[CheckProblem](), list[str]()
    for program in PROGRAMS:
        if not program.leases or program.name not in here:
            continue
        leaders = sorted(pod for pod in _replicas(facts, program) if is_leader(facts, pod))
        leading_pods += leaders
        if len(leaders) > 1:
            message = f"{' and '.join(leaders)} of {program.name} report that they lead at the same time"
            problems.append(CheckProblem(leaders[0], message))
    require(leading_pods, "no replica reports whether it leads")
    return CheckResult(", ".join(sorted(leading_pods)), problems)


@check(
    "leader-reached",
    "clients reach the leading scheduler",
    "kubectl -n {namespace} logs deployment/autoscaling-scheduler -c service | grep endpoints; kubectl -n"
    " {namespace} get endpointslice {subject} -o yaml",
)
def lead_to_leader(facts: CheckFacts) -> CheckResult:
    """With two schedulers the leader writes its address into two EndpointSlices, and creates a missing one: Argo CD
    excludes that kind by default, and a restored cluster may lack it. Its Role must therefore allow `create` of
    endpointslices and `get` of the two Services.
    """
    template = child(installed(facts).get(SCHEDULER, {}), "spec", "template")
    wanted = argument_values(template, "--leader-endpoints")
    require(
        wanted, "no scheduler with --leader-endpoints is installed; Services select a single scheduler by its labels"
    )
    slices = by_name(facts.endpoint_slices.value)
    replicas = {name_of(pod).name for pod in pods_of(facts, SCHEDULER)}
    problems = [CheckProblem(name, why) for name in wanted if (why := _misled(name, slices.get(name), replicas))]
    return CheckResult(", ".join(wanted), problems)


def _misled(name: str, endpoint_slice: Json | None, replicas: set[str]) -> str:
    if endpoint_slice is None:
        return f"EndpointSlice {name} not found, so clients cannot reach the scheduler through the Service {name}"
    pods = [text(endpoint, "targetRef", "name") for endpoint in items(endpoint_slice, "endpoints")]
    if not pods:
        return f"the EndpointSlice {name} has no endpoint: no scheduler leads, or the leader is not allowed to write it"
    # A leader that crashed leaves its endpoint behind until another takes over.
    gone = [pod for pod in pods if pod not in replicas]
    return f"the EndpointSlice {name} points to {gone[0]}, which is not a running pod of {SCHEDULER}" if gone else ""
