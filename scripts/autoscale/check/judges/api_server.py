"""The API server: its availability, version and address family (pure)."""

from __future__ import annotations

import re
from functools import partial
from typing import Final

from deploy.local.kubernetes.programs.versions import SUPPORTED
from protocol.kubernetes.objects import labels_of, name_of, text
from scripts.autoscale.check.facts import CheckFacts, Unavailable, UnavailableError, require
from scripts.autoscale.check.finding import CheckProblem, CheckResult, CheckSection, Level, Verdict, When, check_of
from scripts.autoscale.check.installed_programs import (
    KUBE_SCHEDULER,
    SCHEDULER,
    containers,
    image_tag,
    installed,
    pods_of,
)

check = partial(check_of, CheckSection.API)

LEAST: Final = (1, 31)
"""Needed for CRDs with selectable fields, and for tokens that name their node."""

LEAST_FOR_CONTROLLER: Final = (1, 33)
"""Needed for IPAddress objects, which our controller creates for VMs."""

Minor = tuple[int, int]
_NUMBERS: Final = re.compile(r"v?(\d+)\.(\d+)")


def minor_of(version: str) -> Minor | None:
    """Parses the minor version at the start of a text.

    >>> minor_of("v1.34.1-gke.100"), minor_of("latest")
    ((1, 34), None)
    """
    match = _NUMBERS.match(version)
    return (int(match[1]), int(match[2])) if match else None


def _text(minor: Minor) -> str:
    return f"{minor[0]}.{minor[1]}"


# Fatal: every other line would be skipped for the same reason.
@check(
    "api-answers",
    "the API server answers",
    "kubectl cluster-info; kubectl config current-context",
    When.ALWAYS,
    is_fatal=True,
)
def answers(facts: CheckFacts) -> Verdict:
    """Without it nothing else can be checked. The line quotes the error: connection refused, an untrusted certificate,
    expired credentials, or a server at that address that is not a Kubernetes API server.
    """
    if isinstance(facts.server, Unavailable):
        return CheckProblem("", facts.server.why)
    return CheckResult(f"Kubernetes {facts.server.value.version}")


@check("api-looks", "all queries succeed", "run the check again; kubectl get --raw '/readyz?verbose'", When.ALWAYS)
def queries_succeed(facts: CheckFacts) -> CheckResult:
    """A query failed although you have permission: the API server or a program timed out or returned an error. Lines
    that depend on it are skipped or incomplete.
    """
    # Many queries may fail for the same reason.
    reasons = {query.why for query in facts.failed_queries}
    return CheckResult(problems=[CheckProblem("", reason, Level.WARNING) for reason in sorted(reasons)])


@check(
    "api-version",
    "the Kubernetes version is supported",
    "upgrade the cluster, or install a release of this project that supports its version",
    When.ALWAYS,
)
def is_supported(facts: CheckFacts) -> Verdict:
    """Older clusters lack selectable fields of custom resources and tokens that name their node (1.31), and IPAddress
    objects (1.33, for `neonvm-controller`). A version newer than the tested ones is a warning.
    """
    version = facts.server.value.version
    minor = minor_of(version)
    newest = max(parsed for supported in SUPPORTED if (parsed := minor_of(supported)))
    if minor is None:
        raise UnavailableError(f"cannot parse the API server's version {version!r}")
    if minor < LEAST:
        return CheckProblem("", f"Kubernetes {_text(minor)} is too old: {_text(LEAST)} or newer is required")
    has_controller = not isinstance(facts.deployments, Unavailable) and "neonvm-controller" in installed(facts)
    # Only our own controller needs IPAddress objects; NeonVM's works with older servers.
    if minor < LEAST_FOR_CONTROLLER and has_controller:
        message = f"neonvm-controller needs Kubernetes {_text(LEAST_FOR_CONTROLLER)} or newer; this is {_text(minor)}"
        return CheckProblem("", message)
    # Newer servers mostly work, so this is only a warning.
    if minor > newest:
        message = (
            f"Kubernetes {_text(minor)} is newer than {_text(newest)}, the newest version tested with this release"
        )
        return CheckProblem("", message, Level.WARNING)
    return CheckResult(_text(minor))


@check(
    "api-addresses",
    "pods have IPv4 addresses",
    "kubectl -n default get service kubernetes -o yaml; install into a cluster whose primary family is IPv4",
    When.ALWAYS,
)
def addresses_are_ipv4(facts: CheckFacts) -> Verdict:
    """Our programs listen on IPv4 addresses, the leading scheduler writes one into its EndpointSlices, and each VM has
    one. If IPv6 is the primary family, kubelets probe pods on an address where nothing listens, and the scheduler does
    not start. On dual-stack clusters IPv4 must come first. The check reads the Service `default/kubernetes`.
    """
    # The API server's own Service has an address of the cluster's primary family, as pods do.
    addresses = [text(service, "spec", "clusterIP") for service in facts.api_services.value]
    require(any(addresses), "the Service default/kubernetes has no address")
    if other := [address for address in addresses if ":" in address]:
        message = f"the cluster's primary address family is IPv6 (the API server's Service has {other[0]})"
        return CheckProblem("", message)
    return CheckResult("IPv4")


@check(
    "kube-scheduler-version",
    "our kube-scheduler's version fits the API server",
    "kubectl get --raw /version; kubectl -n {namespace} set image deployment/autoscaling-scheduler"
    " kube-scheduler=registry.k8s.io/kube-scheduler:VERSION",
)
def kube_scheduler_fits(facts: CheckFacts) -> CheckResult:
    """The kube-scheduler in the pod `autoscaling-scheduler` must not be newer than the API server, and at most one
    minor version older. The check compares the tag of its image. Update it after a cluster upgrade.
    """
    server = minor_of(facts.server.value.version)
    problems, tags = list[CheckProblem](), dict[str, str]()
    for pod in pods_of(facts, SCHEDULER):
        for container in containers(pod):
            if text(container, "name") == KUBE_SCHEDULER:
                # An image pinned by digest has no tag; the label contains its version.
                tags[name_of(pod).name] = image_tag(text(container, "image")) or labels_of(pod).get("version", "")
    require(tags, f"no pod of {SCHEDULER} has a kube-scheduler")
    for pod_name, tag in tags.items():
        minor = minor_of(tag)
        if minor is None or server is None:
            raise UnavailableError(f"the tag of kube-scheduler's image, {tag!r}, is not a version")
        problems += _skew(pod_name, minor, server)
    return CheckResult(f"kube-scheduler {', '.join(sorted(set(tags.values())))}", problems)


def _skew(pod: str, ours: Minor, server: Minor) -> list[CheckProblem]:
    versions = f"kube-scheduler in pod {pod} is {_text(ours)}, the API server is {_text(server)}"
    # Kubernetes' version skew policy: never newer than the API server, at most one minor version older.
    if ours > server:
        return [CheckProblem(pod, f"{versions}: kube-scheduler must not be newer than the API server")]
    if ours[1] < server[1] - 1:
        return [CheckProblem(pod, f"{versions}: kube-scheduler may be at most one minor version older", Level.WARNING)]
    return []
