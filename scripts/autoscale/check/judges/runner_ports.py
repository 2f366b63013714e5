"""The ports of VMs' pods: the clients that they accept, and those that reach them (pure)."""

from __future__ import annotations

from collections.abc import Iterable

from deploy.neonvm.objects.pod_form import is_open
from deploy.neonvm.objects.runner_policy import selects_ingress
from protocol.kubernetes.objects import JsonObject, is_over, labels_of, name_of
from scripts.autoscale.check.facts import CheckFacts
from scripts.autoscale.check.finding import CheckProblem, CheckResult, Level
from scripts.autoscale.check.looks import SiteObservations


def are_closed(facts: CheckFacts) -> CheckResult:
    """Check that the ports of VMs' pods ask for the controller's certificate, and what else guards them."""
    pods = [pod for pod in facts.vm_pods.value if not is_over(pod)]
    problems = [
        CheckProblem(
            str(name_of(pod)),
            f"the ports 20183 and 25183 of pod {name_of(pod)} let everyone in: whoever reaches them resizes and moves"
            " its VM; NeonVM's controller made it, or an older release",
            Level.WARNING,
        )
        for pod in pods
        if is_open(pod)
    ]
    return CheckResult(f"{len(pods) - len(problems)} pods ask for a certificate{_unguarded(facts, pods)}", problems)


def _unguarded(facts: CheckFacts, pods: Iterable[JsonObject]) -> str:
    """The namespaces in which nothing but the certificate guards pods of VMs, as the end of a sentence."""
    if not isinstance(facts.network_policies, SiteObservations):
        # If policies could not be listed, nothing is known about them.
        return ""
    bare = {
        name_of(pod).namespace
        for pod in pods
        if not any(_guards(policy, pod) for policy in facts.network_policies.value)
    }
    return f"; no NetworkPolicy guards their ports as well in {', '.join(sorted(bare))}" if bare else ""


def _guards(policy: JsonObject, pod: JsonObject) -> bool:
    return name_of(policy).namespace == name_of(pod).namespace and selects_ingress(policy, labels_of(pod))
