"""What keeps pods of ours out of the namespace: Pod Security, quotas, limits, webhooks of others (pure).

Each program's pod was sent to the API server as a dry run, so the words are the server's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from protocol.kubernetes.objects import is_leaving, labels_of, name_of
from scripts.autoscale.check.facts import CheckFacts
from scripts.autoscale.check.finding import CheckProblem, CheckResult, Level
from scripts.autoscale.check.installed_programs import SCHEDULER, installed
from scripts.autoscale.check.looks import SiteObservations, UnseenError

_ENFORCE: Final = "pod-security.kubernetes.io/enforce"
_POD_SECURITY: Final = ("violates PodSecurity",)
_QUOTA: Final = ("exceeded quota", "failed quota")
_CLASSES: Final = ("insufficient quota to match these scopes",)
"""What a cluster says that admits some priority classes only where a quota is for them."""

_LIMITS: Final = ("usage per Container", "usage per Pod", "limit to request ratio", "LimitRange")

PRIORITY_QUOTA: Final = "install the chart with --set priorityQuota=true, which makes a quota for these classes"


def exists(facts: CheckFacts) -> CheckResult:
    """Check that the namespace is there and is not about to go. Installing makes it."""
    found = next((each for each in facts.namespaces.value if name_of(each).name == facts.namespace), None)
    if found is None and SCHEDULER in installed(facts):
        return CheckResult(problems=[CheckProblem(facts.namespace, f"there is no namespace {facts.namespace}")])
    if found is None:
        return CheckResult(f"{facts.namespace} is not there yet; helm install --create-namespace makes it")
    if is_leaving(found):
        return CheckResult(
            problems=[CheckProblem(facts.namespace, f"the namespace {facts.namespace} is being deleted")]
        )
    return CheckResult(facts.namespace)


def pod_security(facts: CheckFacts) -> CheckResult:
    """Check that the namespace's Pod Security admits our pods.

    One that is not there yet will have no label of its own.
    """
    if facts.tried_in != facts.namespace and _ENFORCE in _labels(facts, facts.tried_in):
        raise UnseenError(f"there is no namespace {facts.namespace} yet, and {facts.tried_in} has its own {_ENFORCE}")
    found = _refused(facts, lambda said: _has(said, _POD_SECURITY))
    if facts.tried_in == facts.namespace:
        return found
    makes = (
        f"kubectl create namespace {facts.namespace}; kubectl label namespace {facts.namespace} {_ENFORCE}=privileged"
    )
    return replace(found, problems=[replace(each, remedy=makes) for each in found.problems])


def _labels(facts: CheckFacts, namespace: str) -> Mapping[str, str]:
    return next((labels_of(each) for each in facts.namespaces.value if name_of(each).name == namespace), {})


def quota(facts: CheckFacts) -> CheckResult:
    """Check that quotas and limits of the namespace leave room for a pod of each program. One that is not there yet has
    none, which is in the way where the cluster asks for a quota.
    """
    if facts.tried_in == facts.namespace:
        found = _refused(facts, lambda said: _has(said, (*_QUOTA, *_CLASSES, *_LIMITS)))
        return replace(found, problems=[_asks_for_quota(each) for each in found.problems])
    lacking = _refused(facts, lambda said: _has(said, _CLASSES)).problems
    if not lacking:
        raise UnseenError(f"there is no namespace {facts.namespace} yet, and so no quota in it")
    return CheckResult(problems=[replace(_asks_for_quota(each), level=Level.WARNING) for each in lacking])


def _asks_for_quota(problem: CheckProblem) -> CheckProblem:
    return replace(problem, remedy=PRIORITY_QUOTA) if _has(problem.said, _CLASSES) else problem


def others(facts: CheckFacts) -> CheckResult:
    """Check for anything else that refuses our pods: a policy, a webhook."""
    known = (*_POD_SECURITY, *_QUOTA, *_CLASSES, *_LIMITS)
    return _refused(facts, lambda said: not _has(said, known))


def _has(said: str, words: tuple[str, ...]) -> bool:
    return any(word in said for word in words)


def _refused(facts: CheckFacts, is_meant: Callable[[str], bool]) -> CheckResult:
    if not facts.admission:
        raise UnseenError("there is no pod to try")
    if not any(isinstance(each, SiteObservations) for each in facts.admission.values()):
        next(iter(facts.admission.values())).value  # noqa: B018 - raises with the reason
    where = "" if facts.tried_in == facts.namespace else f" in {facts.tried_in}, as {facts.namespace} is not there yet,"
    problems = [
        CheckProblem(name, f"a pod of {name}{where} is refused: {look.value}")
        for name, look in facts.admission.items()
        if isinstance(look, SiteObservations) and look.value and is_meant(look.value)
    ]
    return CheckResult(f"{len(facts.admission)} pods were tried in {facts.tried_in}", problems)
