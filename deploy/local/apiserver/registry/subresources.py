"""The subresources binding, eviction, scale, token and finalize. (Updates handle ``status`` and ``resize``.)"""

from __future__ import annotations

from typing import Any, Final

from deploy.local.apiserver.apimachinery import errors
from deploy.local.apiserver.apimachinery.jsonvalue import JsonObject, field, text_at, with_field
from deploy.local.apiserver.authn.tokens import ISSUER, Reference, TokenClaims, sign
from deploy.local.apiserver.registry.api import Api, DeleteOptions, RequestTarget, StoreResult, WriteOptions
from deploy.local.apiserver.registry.metadata import is_terminating, timestamp
from deploy.local.apiserver.resources.resource import ScalePaths, ServedResource
from deploy.local.apiserver.storage.database import Key
from deploy.local.apiserver.storage.store import StoredObject
from protocol.kubernetes.objects import labels_of, selects

# Limits and default of kube-apiserver, in seconds.
_MIN_SECONDS: Final = 600
_MAX_SECONDS: Final = 2**32
_DEFAULT_SECONDS: Final = 3600


def success(code: int = 201) -> JsonObject:
    """The Status of a successful request without an object to return."""
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": code}


def bind(api: Api, target: RequestTarget, binding: JsonObject, options: WriteOptions) -> JsonObject:
    """Bind a pod to a node. Raises 404, 422, and 409 if the uid differs, or the pod has a node or is being deleted."""
    node = field(binding, ("target", "name"))
    pod = api.get(target)
    subject = errors.Subject("pods/binding", "", target.name, "Pod")
    if not node or not isinstance(node, str):
        raise errors.invalid(
            errors.Subject(kind="Binding", name=target.name), [errors.Cause("target.name", "Required value")]
        )
    uid = field(binding, ("metadata", "uid"))
    if uid and uid != pod.body["metadata"]["uid"]:
        raise errors.conflict(
            subject,
            f"Precondition failed: UID in precondition: {uid}, UID in object meta: {pod.body['metadata']['uid']}",
        )
    if is_terminating(pod.body):
        raise errors.conflict(subject, f"pod {target.name} is being deleted, cannot be assigned to a host")
    taken = field(pod.body, ("spec", "nodeName"))
    if taken:
        raise errors.conflict(subject, f'pod {target.name} is already assigned to node "{taken}"')
    if not options.dry_run:
        # Directly in the store, because `update` rejects changes of the node.
        api.store.replace(pod, _bound(pod.body, node, binding, timestamp(api.environment.now())))
    return success()


def _bound(pod: JsonObject, node: str, binding: JsonObject, now: str) -> JsonObject:
    scheduled = {"type": "PodScheduled", "status": "True", "lastProbeTime": None, "lastTransitionTime": now}
    others = [other for other in field(pod, ("status", "conditions")) or [] if other.get("type") != "PodScheduled"]
    body = with_field(pod, ("spec", "nodeName"), node)
    body = with_field(body, ("status", "conditions"), [*others, scheduled])
    for name in ("annotations", "labels"):
        added = field(binding, ("metadata", name))
        if added:
            body = with_field(body, ("metadata", name), {**(body["metadata"].get(name) or {}), **added})
    return body


def evict(api: Api, target: RequestTarget, options: DeleteOptions) -> JsonObject:
    """Delete a pod. Raises 404, and 429 if a PodDisruptionBudget does not allow it now."""
    pod = api.get(target)
    budgets = [pdb for pdb in api.store.objects("poddisruptionbudgets.policy", target.namespace) if _guards(pdb, pod)]
    if len(budgets) > 1:
        message = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
        # kube-apiserver returns a 500 too.
        raise errors.StatusError(500, "InternalError", message)
    # Deleting a finished pod disrupts nothing.
    finished = field(pod.body, ("status", "phase")) in {"Succeeded", "Failed"}
    for budget in budgets:
        if not finished and (field(budget.body, ("status", "disruptionsAllowed")) or 0) <= 0:
            why = "Cannot evict pod as it would violate the pod's disruption budget."
            raise errors.too_many_requests(target.resource.subject(target.name), why, 10)
    api.delete(target, options)
    return success()


def _guards(budget: StoredObject, pod: StoredObject) -> bool:
    selector = field(budget.body, ("spec", "selector"))
    # An empty selector selects everything, a missing one nothing.
    return selector == {} or selects(selector or {}, labels_of(pod.body))


def scale_of(resource: ServedResource, stored: StoredObject) -> JsonObject:
    """The Scale of an object."""
    paths = resource.scale or ScalePaths()
    meta: JsonObject = stored.body["metadata"]
    keys = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    replicas = field(stored.body, paths.spec_replicas.split("."))
    status: JsonObject = {"replicas": field(stored.body, paths.status_replicas.split(".")) or 0}
    selector = _selector_text(field(stored.body, paths.selector.split(".")))
    if selector:
        status["selector"] = selector
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {key: meta[key] for key in keys if key in meta},
        "spec": {"replicas": replicas} if replicas is not None else {},
        "status": status,
    }


def _selector_text(selector: Any) -> str:
    if isinstance(selector, str):
        return selector
    # Workloads have a LabelSelector here; ReplicationControllers have plain labels.
    labels = selector.get("matchLabels", selector) if isinstance(selector, dict) else {}
    if not isinstance(labels, dict):
        return ""
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items()) if isinstance(value, str))


def set_scale(api: Api, target: RequestTarget, scale: JsonObject, options: WriteOptions) -> StoreResult:
    """Set an object's replica count from ``scale``. Raises 400, 404, 409 or 422."""
    paths = target.resource.scale or ScalePaths()
    replicas = field(scale, ("spec", "replicas"))
    if not isinstance(replicas, int) or isinstance(replicas, bool):
        raise errors.bad_request("spec.replicas: expected a whole number")
    if replicas < 0:
        cause = errors.Cause("spec.replicas", f"Invalid value: {replicas}: must be greater than or equal to 0")
        raise errors.invalid(errors.Subject("scales", "autoscaling", target.name, "Scale"), [cause])
    version = text_at(scale, "metadata.resourceVersion")

    def scaled(body: JsonObject) -> JsonObject:
        changed = with_field(body, paths.spec_replicas.split("."), replicas)
        # With a resourceVersion, the write fails if the object has changed since the client read the Scale.
        return with_field(changed, ("metadata", "resourceVersion"), version) if version else changed

    return api.change(RequestTarget(target.resource, target.namespace, target.name), scaled, options)


def issue_token(api: Api, target: RequestTarget, request: JsonObject, signing_key: bytes) -> JsonObject:
    """Issue a token; return the TokenRequest with it. Raises 400, 404, 409 or 422."""
    account = api.get(target)
    spec: JsonObject = request.get("spec") or {}
    seconds = spec.get("expirationSeconds") or _DEFAULT_SECONDS
    _check_seconds(target, seconds)
    now = int(api.environment.now().timestamp())
    pod, node = _bound_objects(api, target, spec.get("boundObjectRef"))
    claims = TokenClaims(
        namespace=target.namespace,
        account=Reference(target.name, account.body["metadata"]["uid"]),
        audiences=tuple(spec.get("audiences") or (ISSUER,)),
        issued=now,
        expires=now + seconds,
        token_id=api.environment.new_uid(),
        pod=pod,
        node=node,
    )
    expires = timestamp(api.environment.now().fromtimestamp(claims.expires, api.environment.now().tzinfo))
    return {
        "kind": "TokenRequest",
        "apiVersion": "authentication.k8s.io/v1",
        "metadata": {
            "name": target.name,
            "namespace": target.namespace,
            "creationTimestamp": timestamp(api.environment.now()),
        },
        "spec": {**spec, "audiences": list(claims.audiences), "expirationSeconds": seconds},
        "status": {"token": sign(claims, signing_key), "expirationTimestamp": expires},
    }


def _check_seconds(target: RequestTarget, seconds: Any) -> None:
    if not isinstance(seconds, int) or not _MIN_SECONDS <= seconds <= _MAX_SECONDS:
        limit = (
            "less than 10 minutes"
            if not isinstance(seconds, int) or seconds < _MIN_SECONDS
            else "larger than 2^32 seconds"
        )
        cause = errors.Cause("spec.expirationSeconds", f"Invalid value: {seconds}: may not specify a duration {limit}")
        raise errors.invalid(
            errors.Subject("tokenrequests", "authentication.k8s.io", target.name, "TokenRequest"), [cause]
        )


def _bound_objects(api: Api, target: RequestTarget, reference: Any) -> tuple[Reference | None, Reference | None]:
    """The pod that a token is bound to, and the pod's node; None if there is none."""
    if not isinstance(reference, dict):
        return None, None
    if reference.get("kind") != "Pod":
        raise errors.bad_request(
            f"cannot bind token to object of kind {reference.get('kind')!r}: only Pod is supported"
        )
    pods = api.catalog.builtin("pods")
    pod = api.get(RequestTarget(pods, target.namespace, reference.get("name", "")))
    uid = pod.body["metadata"]["uid"]
    if reference.get("uid") not in (None, "", uid):
        why = (
            f"the UID in the bound object reference ({reference['uid']}) does not match the UID in record. The object "
            "might have been deleted and then recreated"
        )
        raise errors.conflict(pods.subject(pod.key.name), why)
    if text_at(pod.body, "spec.serviceAccountName") != target.name:
        raise errors.bad_request(
            f'cannot bind token for serviceaccount "{target.name}" to pod running with different serviceaccount name.'
        )
    node = text_at(pod.body, "spec.nodeName")
    if not node:
        return Reference(pod.key.name, uid), None
    # The node may have been deleted before its pod.
    stored = api.store.get(Key("nodes", "", node))
    return Reference(pod.key.name, uid), Reference(node, stored.body["metadata"]["uid"] if stored else "")


def finalize_namespace(api: Api, target: RequestTarget, submitted: JsonObject, options: WriteOptions) -> StoreResult:
    """Replace ``spec.finalizers`` of a namespace; without any, a terminating namespace is removed."""
    finalizers = field(submitted, ("spec", "finalizers")) or []
    plain = RequestTarget(target.resource, target.namespace, target.name)
    return api.change(plain, lambda body: with_field(body, ("spec", "finalizers"), finalizers), options)
