"""Rules of single built-in resources: defaults, validation, and deletion. Pure.

They cover only what clients of the local cluster rely on, not all of Kubernetes' validation.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from deploy.local.apiserver.apimachinery.errors import FORBIDDEN, REQUIRED, Cause, bad_request
from deploy.local.apiserver.apimachinery.jsonvalue import JsonObject, field
from deploy.local.apiserver.registry import pod_checks, pod_resources
from deploy.local.apiserver.registry.metadata import is_terminating, timestamp
from deploy.local.apiserver.resources import definitions
from deploy.local.apiserver.schema.structural import unsupported_rules

NAMESPACE_FINALIZER: Final = "kubernetes"
_DEFAULT_GRACE: Final = 30  # seconds, as in Kubernetes
# Go always writes MicroTime with six digits.
_MICRO_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}(Z|[+-]\d\d:\d\d)")
_FINISHED: Final = frozenset({"Succeeded", "Failed"})
_UNDELETABLE_NAMESPACES: Final = frozenset({"default", "kube-system", "kube-public"})


@dataclass(frozen=True, slots=True)
class Strategy:
    """Behaviour of one resource.

    ``complete(body, now)`` sets defaults of a new or changed object; ``check(before, body)`` yields its errors;
    ``grace(body)`` is its grace period in seconds (0: deleted immediately); ``is_held(body)`` is true while it must not
    be removed for other reasons than finalizers; ``warnings(body)`` are for the client.
    ``check_path(subresource, before, body)`` yields the forbidden changes of an update by that path (empty: the object
    itself). ``needs_version``: an update must have a resourceVersion. ``status_with_metadata``: a status update may
    change labels, annotations and finalizers too. ``creates_on_update``: an update creates a missing object.
    ``undeletable`` are the names of objects that cannot be deleted.
    """

    complete: Callable[[JsonObject, datetime], JsonObject] = lambda body, _: body
    check: Callable[[JsonObject | None, JsonObject], Iterator[Cause]] = lambda *_: iter(())
    grace: Callable[[JsonObject], int] = lambda _: 0
    initial_status: Callable[[JsonObject], JsonObject | None] = lambda _: None
    keeps_status: bool = False
    is_held: Callable[[JsonObject], bool] = lambda _: False
    warnings: Callable[[JsonObject], tuple[str, ...]] = lambda _: ()
    check_path: Callable[[str, JsonObject, JsonObject], Iterator[Cause]] = lambda *_: iter(())
    needs_version: bool = False
    status_with_metadata: bool = False
    creates_on_update: bool = False
    undeletable: frozenset[str] = frozenset()


def _complete_pod(body: JsonObject, _: datetime) -> JsonObject:
    spec: JsonObject = body.get("spec") or {}
    account = spec.get("serviceAccountName") or spec.get("serviceAccount") or "default"
    defaults = {
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": _DEFAULT_GRACE,
        "dnsPolicy": "ClusterFirst",
        "schedulerName": "default-scheduler",
        "enableServiceLinks": True,
        "securityContext": {},
    }
    present = {key: value for key, value in spec.items() if value is not None}
    # One field with two names; Kubernetes still sets the deprecated `serviceAccount`.
    accounts = {"serviceAccountName": account, "serviceAccount": account}
    return {**body, "spec": {**defaults, **present, **accounts}}


def _pod_grace(body: JsonObject) -> int:
    """Grace period of a pod in seconds: 0 if it has no node or has finished, otherwise the spec's."""
    if not field(body, ("spec", "nodeName")) or field(body, ("status", "phase")) in _FINISHED:
        return 0
    seconds = field(body, ("spec", "terminationGracePeriodSeconds"))
    return seconds if isinstance(seconds, int) else _DEFAULT_GRACE


def _complete_namespace(body: JsonObject, _: datetime) -> JsonObject:
    meta: JsonObject = body["metadata"]
    labels = {**(meta.get("labels") or {}), "kubernetes.io/metadata.name": meta["name"]}
    finalizers = field(body, ("spec", "finalizers"))
    # Not if it is empty: then the garbage collector has allowed the namespace's deletion.
    spec = {**(body.get("spec") or {}), "finalizers": [NAMESPACE_FINALIZER] if finalizers is None else finalizers}
    return {**body, "metadata": {**meta, "labels": labels}, "spec": spec}


def _complete_secret(body: JsonObject, _: datetime) -> JsonObject:
    plain: JsonObject = body.get("stringData") or {}
    try:
        encoded = {key: base64.b64encode(value.encode()).decode() for key, value in plain.items()}
    except AttributeError:
        raise bad_request("stringData: expected an object of strings") from None
    # `stringData` is write-only.
    rest = {key: value for key, value in body.items() if key != "stringData"}
    if encoded:
        rest["data"] = {**(body.get("data") or {}), **encoded}
    return {**rest, "type": body.get("type") or "Opaque"}


def _complete_lease(body: JsonObject, _: datetime) -> JsonObject:
    for name in ("acquireTime", "renewTime"):
        timestamp = field(body, ("spec", name))
        if timestamp is not None and not (isinstance(timestamp, str) and _MICRO_TIME.fullmatch(timestamp)):
            raise bad_request(f"spec.{name}: expected a time with six digits of a second, got {timestamp!r}")
    return body


def _check_lease(_: JsonObject | None, body: JsonObject) -> Iterator[Cause]:
    seconds = field(body, ("spec", "leaseDurationSeconds"))
    if isinstance(seconds, int) and seconds <= 0:
        yield Cause("spec.leaseDurationSeconds", f"Invalid value: {seconds}: must be greater than 0")


def _check_immutable(before: JsonObject | None, body: JsonObject) -> Iterator[Cause]:
    if before is None or not before.get("immutable"):
        return
    for name in ("data", "binaryData", "immutable", "type"):
        if before.get(name) != body.get(name):
            yield Cause(name, "Forbidden: field is immutable when `immutable` is set", FORBIDDEN)


def _defaults(*path: str, **values: Any) -> Callable[[JsonObject, datetime], JsonObject]:
    def complete(body: JsonObject, _: datetime) -> JsonObject:
        (name,) = path
        return {**body, name: {**values, **(body.get(name) or {})}}

    return complete


def _complete_definition(body: JsonObject, now: datetime) -> JsonObject:
    meta: JsonObject = body["metadata"]
    finalizers = meta.get("finalizers") or []
    # While the CRD is being deleted, the garbage collector removes the finalizer; do not add it again.
    if not is_terminating(body) and definitions.CLEANUP_FINALIZER not in finalizers:
        body = {**body, "metadata": {**meta, "finalizers": [*finalizers, definitions.CLEANUP_FINALIZER]}}
    return definitions.established(body, timestamp(now))


def _complete_autoscaler(body: JsonObject, _: datetime) -> JsonObject:
    spec: JsonObject = body.get("spec") or {}
    return {**body, "spec": {**spec, "minReplicas": 1 if spec.get("minReplicas") is None else spec["minReplicas"]}}


def _check_autoscaler(_: JsonObject | None, body: JsonObject) -> Iterator[Cause]:
    spec: JsonObject = body["spec"]
    target: JsonObject = spec.get("scaleTargetRef") or {}
    for part in ("kind", "name"):
        if not target.get(part):
            yield Cause(f"spec.scaleTargetRef.{part}", "Required value", REQUIRED)
    most, least = spec.get("maxReplicas") or 0, spec["minReplicas"]
    if most < 1:
        yield Cause("spec.maxReplicas", f"Invalid value: {most}: must be greater than 0")
    elif most < least:
        yield Cause("spec.maxReplicas", f"Invalid value: {most}: must be greater than or equal to `minReplicas`")
    if least < 1:
        yield Cause("spec.minReplicas", f"Invalid value: {least}: must be greater than or equal to 1")


STRATEGIES: Final[dict[str, Strategy]] = {
    "pods": Strategy(
        _complete_pod,
        pod_checks.check,
        _pod_grace,
        lambda body: {"phase": "Pending", "qosClass": pod_resources.class_of(body)},
        check_path=pod_checks.check_path,
        status_with_metadata=True,
    ),
    # A kubelet creates its Node with a status.
    "nodes": Strategy(keeps_status=True, status_with_metadata=True),
    "namespaces": Strategy(
        _complete_namespace,
        initial_status=lambda _: {"phase": "Active"},
        is_held=lambda body: bool(field(body, ("spec", "finalizers"))),
        undeletable=_UNDELETABLE_NAMESPACES,
    ),
    "secrets": Strategy(_complete_secret, _check_immutable),
    "configmaps": Strategy(check=_check_immutable),
    "leases.coordination.k8s.io": Strategy(_complete_lease, _check_lease, needs_version=True, creates_on_update=True),
    "poddisruptionbudgets.policy": Strategy(needs_version=True),
    "services": Strategy(_defaults("spec", type="ClusterIP", sessionAffinity="None")),
    "deployments.apps": Strategy(_defaults("spec", replicas=1)),
    "replicasets.apps": Strategy(_defaults("spec", replicas=1)),
    "statefulsets.apps": Strategy(_defaults("spec", replicas=1)),
    "horizontalpodautoscalers.autoscaling": Strategy(_complete_autoscaler, _check_autoscaler),
    definitions.CRD_KEY: Strategy(
        _complete_definition,
        keeps_status=True,
        warnings=lambda body: tuple(unsupported_rules(body.get("spec"))),
        needs_version=True,
    ),
}

_PLAIN: Final = Strategy()


def strategy_of(resource_key: str) -> Strategy:
    """The strategy of a resource."""
    return STRATEGIES.get(resource_key, _PLAIN)
