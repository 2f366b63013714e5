"""Admission of our pods by Pod Security, quotas, limits and other projects' webhooks (pure).

The facts contain the API server's refusals of dry runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from protocol.kubernetes.objects import is_terminating, labels_of
from scripts.autoscale.check.facts import CheckFacts, UnavailableError, observed_values, require
from scripts.autoscale.check.finding import CheckProblem, CheckResult, CheckSection, Level, Verdict, When, check_of
from scripts.autoscale.check.installed_programs import SCHEDULER, by_name, installed

check = partial(check_of, CheckSection.NAMESPACE)

_ENFORCE: Final = "pod-security.kubernetes.io/enforce"
_POD_SECURITY: Final = ("violates PodSecurity",)
_QUOTA: Final = ("exceeded quota", "failed quota")
_CLASSES: Final = ("insufficient quota to match these scopes",)
"""The refusal of a cluster that admits some priority classes only if a quota covers them."""

_LIMITS: Final = ("usage per Container", "usage per Pod", "limit to request ratio", "LimitRange")

PRIORITY_QUOTA: Final = "install the chart with --set priorityQuota=true, which creates a quota for these classes"


@check("namespace-exists", "the namespace exists", "kubectl create namespace {namespace}", When.ALWAYS)
def exists(facts: CheckFacts) -> Verdict:
    """The namespace of the installation: `--namespace`, otherwise the one that contains `autoscaling-scheduler`. Before
    you install it is `autoscale-system`, which need not exist.
    """
    namespace = by_name(facts.namespaces.value).get(facts.namespace)
    # A missing namespace is a problem only if the scheduler is installed; otherwise the installation creates it.
    if namespace is None and SCHEDULER in installed(facts):
        return CheckProblem(facts.namespace, f"namespace {facts.namespace} not found")
    if namespace is None:
        return CheckResult(f"{facts.namespace} does not exist yet; helm install --create-namespace creates it")
    if is_terminating(namespace):
        return CheckProblem(facts.namespace, f"the namespace {facts.namespace} is being deleted")
    return CheckResult(facts.namespace)


@check(
    "namespace-pod-security",
    "Pod Security admits our pods",
    "kubectl label --overwrite namespace {namespace} pod-security.kubernetes.io/enforce=privileged",
    When.ALWAYS,
)
def pod_security(facts: CheckFacts) -> CheckResult:
    """The check submits a pod of each program as a dry run. Pod Security refused one because of the namespace's label
    `pod-security.kubernetes.io/enforce`. Most programs are `restricted`; `neonvm-devices` and `neonvm-network` need
    `privileged`. Running pods stay, but the API server would refuse their replacements. If the namespace does not exist
    yet, the check uses `default`, which usually has no such label either.
    """
    # The stand-in's label says nothing about a namespace that will be created without one.
    labels = labels_of(by_name(facts.namespaces.value).get(facts.admission_namespace, {}))
    if facts.admission_namespace != facts.namespace and _ENFORCE in labels:
        raise UnavailableError(
            f"{facts.namespace} does not exist yet, and {facts.admission_namespace} has a label {_ENFORCE} of its own"
        )
    result = _refused(facts, lambda message: _has(message, _POD_SECURITY))
    if facts.admission_namespace == facts.namespace:
        return result
    remedy = (
        f"kubectl create namespace {facts.namespace}; kubectl label namespace {facts.namespace} {_ENFORCE}=privileged"
    )
    return replace(result, problems=[replace(problem, remedy=remedy) for problem in result.problems])


@check(
    "namespace-quota", "quotas and limits admit our pods", "kubectl -n {namespace} describe quota,limits", When.ALWAYS
)
def quota(facts: CheckFacts) -> CheckResult:
    """A ResourceQuota or LimitRange refused a pod that the check submitted as a dry run. Running pods stay, but the API
    server would refuse their replacements. *Insufficient quota to match these scopes* means that a quota is missing:
    the cluster (GKE) admits pods of system priority classes only into namespaces with a quota for them. If the
    namespace does not exist yet, this is a warning: the chart creates such a quota with `priorityQuota=true`.
    """
    if facts.admission_namespace == facts.namespace:
        result = _refused(facts, lambda message: _has(message, (*_QUOTA, *_CLASSES, *_LIMITS)))
        return replace(result, problems=[_with_remedy(problem) for problem in result.problems])
    # A namespace that does not exist yet has no quota, which is a problem only if the cluster requires one.
    lacking = _refused(facts, lambda message: _has(message, _CLASSES)).problems
    require(lacking, f"{facts.namespace} does not exist yet, so it has no quota")
    return CheckResult(problems=[replace(_with_remedy(problem), level=Level.WARNING) for problem in lacking])


def _with_remedy(problem: CheckProblem) -> CheckProblem:
    return replace(problem, remedy=PRIORITY_QUOTA) if _has(problem.message, _CLASSES) else problem


@check(
    "namespace-admission",
    "policies and webhooks admit our pods",
    "kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations,validatingadmissionpolicies",
    When.ALWAYS,
)
def foreign_admission(facts: CheckFacts) -> CheckResult:
    """Another project's policy or webhook refused a pod that the check submitted as a dry run; the line quotes it."""
    other_checks = (*_POD_SECURITY, *_QUOTA, *_CLASSES, *_LIMITS)
    return _refused(facts, lambda message: not _has(message, other_checks))


def _has(message: str, phrases: tuple[str, ...]) -> bool:
    return any(phrase in message for phrase in phrases)


def _refused(facts: CheckFacts, is_relevant: Callable[[str], bool]) -> CheckResult:
    refusals = observed_values(facts.admission, "there are no pods to test")
    tested_in = facts.admission_namespace
    where = "" if tested_in == facts.namespace else f" in {tested_in} ({facts.namespace} does not exist yet)"
    problems = [
        CheckProblem(name, f"the API server refuses a pod of {name}{where}: {message}")
        for name, message in refusals.items()
        if message and is_relevant(message)
    ]
    return CheckResult(f"tested {len(facts.admission)} pods in {tested_in}", problems)
