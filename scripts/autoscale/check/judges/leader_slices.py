"""EndpointSlices by which clients find the scheduler that leads: its Services have one that names it (pure)."""

from __future__ import annotations

from protocol.kubernetes.objects import Json, child, items, name_of, text
from scripts.autoscale.check.facts import CheckFacts
from scripts.autoscale.check.finding import CheckProblem, CheckResult
from scripts.autoscale.check.installed_programs import SCHEDULER, argument_values, installed, pods_of
from scripts.autoscale.check.looks import UnseenError


def lead_to_leader(facts: CheckFacts) -> CheckResult:
    """Check that each EndpointSlice that the leader keeps is there and names a pod of the scheduler."""
    template = child(installed(facts).get(SCHEDULER, {}), "spec", "template")
    wanted = argument_values(template, "--leader-endpoints")
    if not wanted:
        raise UnseenError(
            "no scheduler is installed that keeps EndpointSlices: one that acts alone is selected by labels"
        )
    slices = {name_of(endpoint_slice).name: endpoint_slice for endpoint_slice in facts.slices.value}
    replicas = {name_of(pod).name for pod in pods_of(facts, SCHEDULER)}
    problems = [CheckProblem(name, why) for name in wanted if (why := _wrong(name, slices.get(name), replicas))]
    return CheckResult(", ".join(wanted), problems)


def _wrong(name: str, found: Json | None, replicas: set[str]) -> str:
    if found is None:
        return f"there is no EndpointSlice {name}, so nobody reaches the scheduler by the Service {name}"
    pods = [text(endpoint, "targetRef", "name") for endpoint in items(found, "endpoints")]
    if not pods:
        return f"the EndpointSlice {name} has no endpoint: no scheduler leads, or the leader may not write it"
    # A leader that crashed leaves its name behind until another takes over.
    gone = [pod for pod in pods if pod not in replicas]
    return f"the EndpointSlice {name} leads to {gone[0]}, which is no running pod of {SCHEDULER}" if gone else ""
