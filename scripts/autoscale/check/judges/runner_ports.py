"""The ports of VMs' pods: whom they let in, and who reaches them (pure)."""

from __future__ import annotations

from deploy.neonvm.objects.pod_form import is_open
from protocol.kubernetes.objects import is_over, name_of
from scripts.autoscale.check.facts import Facts
from scripts.autoscale.check.finding import Found, Level, Problem
from scripts.autoscale.check.looks import Seen

POLICY = "neonvm-runners"


def are_closed(facts: Facts) -> Found:
    """Whether the ports of VMs' pods ask for the controller's certificate, and what else guards them."""
    pods = [each for each in facts.vm_pods.value if not is_over(each)]
    problems = [
        Problem(
            str(name_of(pod)),
            f"the ports 20183 and 25183 of pod {name_of(pod)} let everyone in: whoever reaches them resizes and moves"
            " its VM; NeonVM's controller made it, or an older release",
            Level.WARNING,
        )
        for pod in pods
        if is_open(pod)
    ]
    return Found(f"{len(pods) - len(problems)} pods ask for a certificate{_unguarded(facts)}", problems)


def _unguarded(facts: Facts) -> str:
    """In which namespaces that have VMs nothing but the certificate keeps others out."""
    if not isinstance(facts.network_policies, Seen):
        return ""
    guarded = {name_of(each).namespace for each in facts.network_policies.value if name_of(each).name == POLICY}
    bare = sorted({name_of(pod).namespace for pod in facts.vm_pods.value} - guarded)
    return f"; no NetworkPolicy {POLICY} beside that in {', '.join(bare)}" if bare else ""
