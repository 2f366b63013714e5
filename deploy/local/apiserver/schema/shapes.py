"""Types of the fields of built-in kinds and requests that this server reads. Pure.

Built-in kinds have no schemas here. Still, the fields that the server, its controllers or its tables read must have the
right types; otherwise it returns a 400, like kube-apiserver for objects that it cannot decode. All other fields are
stored as submitted.
"""

from __future__ import annotations

from typing import Any, Final

from deploy.local.apiserver.apimachinery.errors import bad_request
from deploy.local.apiserver.apimachinery.jsonvalue import JsonObject
from deploy.local.apiserver.schema.validation import violations


def _object(**properties: JsonObject) -> JsonObject:
    return {"type": "object", "nullable": True, "properties": properties}


def _map(of: JsonObject) -> JsonObject:
    # The field may be null, which means absent, but its members must not.
    return {"type": "object", "nullable": True, "additionalProperties": {**of, "nullable": False}}


def _list(of: JsonObject) -> JsonObject:
    return {"type": "array", "nullable": True, "items": {**of, "nullable": False}}


_TEXT: Final[JsonObject] = {"type": "string", "nullable": True}
_WHOLE: Final[JsonObject] = {"type": "integer", "format": "int64", "nullable": True}
# With more seconds, times could be out of Python's range.
_GRACE: Final[JsonObject] = {**_WHOLE, "maximum": 10**9}
_FLAG: Final[JsonObject] = {"type": "boolean", "nullable": True}
_QUANTITY: Final[JsonObject] = {
    "nullable": True,
    "format": "quantity",
    "anyOf": [{"type": "number"}, {"type": "string"}],
}
_ANY: Final = _object()


def _texts(*names: str) -> dict[str, JsonObject]:
    return dict.fromkeys(names, _TEXT)


_METADATA: Final = _object(
    **_texts("name", "generateName", "namespace", "uid", "resourceVersion"),
    labels=_map(_TEXT),
    annotations=_map(_TEXT),
    finalizers=_list(_TEXT),
    ownerReferences=_list(
        _object(**_texts("apiVersion", "kind", "name", "uid"), controller=_FLAG, blockOwnerDeletion=_FLAG)
    ),
    managedFields=_list(_object(**_texts("manager", "operation", "apiVersion", "subresource"), fieldsV1=_ANY)),
)
_CONDITIONS: Final = _list(_object(**_texts("type", "status", "reason", "message")))
_EXPRESSIONS: Final = _list(_object(key=_TEXT, operator=_TEXT, values=_list(_TEXT)))
_SELECTOR: Final = _object(matchLabels=_map(_TEXT), matchExpressions=_EXPRESSIONS)
_CONTAINERS: Final = _list(
    _object(name=_TEXT, image=_TEXT, resources=_object(requests=_map(_QUANTITY), limits=_map(_QUANTITY)))
)
_NODE_SELECTOR_TERM: Final = _object(matchExpressions=_EXPRESSIONS, matchFields=_EXPRESSIONS)
_POD_TERMS: Final = _list(
    _object(labelSelector=_SELECTOR, namespaceSelector=_SELECTOR, namespaces=_list(_TEXT), topologyKey=_TEXT)
)
_POD_AFFINITY: Final = _object(requiredDuringSchedulingIgnoredDuringExecution=_POD_TERMS)
_AFFINITY: Final = _object(
    nodeAffinity=_object(
        requiredDuringSchedulingIgnoredDuringExecution=_object(nodeSelectorTerms=_list(_NODE_SELECTOR_TERM))
    ),
    podAffinity=_POD_AFFINITY,
    podAntiAffinity=_POD_AFFINITY,
)
_POD_SPEC: Final = _object(
    **_texts("nodeName", "schedulerName", "serviceAccountName", "serviceAccount", "restartPolicy"),
    activeDeadlineSeconds=_WHOLE,
    terminationGracePeriodSeconds=_GRACE,
    schedulingGates=_list(_object(name=_TEXT)),
    containers=_CONTAINERS,
    initContainers=_CONTAINERS,
    nodeSelector=_map(_TEXT),
    tolerations=_list(_object(**_texts("key", "operator", "value", "effect"), tolerationSeconds=_WHOLE)),
    affinity=_AFFINITY,
    overhead=_map(_QUANTITY),
)
_POD_STATUS: Final = _object(
    **_texts("phase", "reason", "message", "podIP"),
    conditions=_CONDITIONS,
    containerStatuses=_list(
        _object(name=_TEXT, ready=_FLAG, restartCount=_WHOLE, state=_object(waiting=_object(reason=_TEXT)))
    ),
)
_NODE: Final = _object(
    spec=_object(unschedulable=_FLAG, taints=_list(_object(**_texts("key", "value", "effect", "timeAdded")))),
    status=_object(conditions=_CONDITIONS, allocatable=_map(_QUANTITY), capacity=_map(_QUANTITY)),
)
_SCALED: Final = _object(spec=_object(replicas=_WHOLE), status=_object(replicas=_WHOLE))
_DEFINITION: Final = _object(
    spec=_object(
        **_texts("group", "scope"),
        names=_object(
            **_texts("plural", "kind", "singular", "listKind"), shortNames=_list(_TEXT), categories=_list(_TEXT)
        ),
        versions=_list(
            _object(
                name=_TEXT,
                served=_FLAG,
                storage=_FLAG,
                schema=_object(openAPIV3Schema=_ANY),
                subresources=_object(
                    status=_ANY,
                    scale=_object(**_texts("specReplicasPath", "statusReplicasPath", "labelSelectorPath")),
                ),
                additionalPrinterColumns=_list(
                    _object(**_texts("name", "jsonPath", "type", "format", "description"), priority=_WHOLE)
                ),
                selectableFields=_list(_object(jsonPath=_TEXT)),
            )
        ),
        conversion=_object(strategy=_TEXT),
    ),
    status=_object(conditions=_CONDITIONS, storedVersions=_list(_TEXT)),
)

_BUILTIN: Final[dict[str, JsonObject]] = {
    "pods": _object(spec=_POD_SPEC, status=_POD_STATUS),
    "nodes": _NODE,
    "namespaces": _object(spec=_object(finalizers=_list(_TEXT)), status=_object(phase=_TEXT)),
    "secrets": _object(data=_map(_TEXT), stringData=_map(_TEXT), type=_TEXT, immutable=_FLAG),
    "configmaps": _object(data=_map(_TEXT), binaryData=_map(_TEXT), immutable=_FLAG),
    "events": _object(involvedObject=_object(kind=_TEXT, name=_TEXT)),
    "services": _object(spec=_object(ports=_list(_object(port=_WHOLE, protocol=_TEXT)))),
    "poddisruptionbudgets.policy": _object(spec=_object(selector=_SELECTOR), status=_object(disruptionsAllowed=_WHOLE)),
    "customresourcedefinitions.apiextensions.k8s.io": _DEFINITION,
    "deployments.apps": _SCALED,
    "replicasets.apps": _SCALED,
    "statefulsets.apps": _SCALED,
    "horizontalpodautoscalers.autoscaling": _object(
        spec=_object(
            scaleTargetRef=_object(**_texts("apiVersion", "kind", "name")), minReplicas=_WHOLE, maxReplicas=_WHOLE
        ),
        status=_object(currentReplicas=_WHOLE, desiredReplicas=_WHOLE, conditions=_CONDITIONS),
    ),
}
_PLAIN: Final = _object(spec=_ANY, status=_ANY)

DELETE_OPTIONS: Final = _object(
    gracePeriodSeconds=_GRACE,
    preconditions=_object(uid=_TEXT, resourceVersion=_TEXT),
    propagationPolicy=_TEXT,
    orphanDependents=_FLAG,
    dryRun=_list({"type": "string"}),
)
EVICTION: Final = _object(metadata=_METADATA, deleteOptions=DELETE_OPTIONS)
BINDING: Final = _object(metadata=_METADATA, target=_object(kind=_TEXT, name=_TEXT))
SCALE: Final = _object(metadata=_METADATA, spec=_object(replicas=_WHOLE))
TOKEN_REQUEST: Final = _object(
    metadata=_METADATA,
    spec=_object(
        audiences=_list({"type": "string"}),
        expirationSeconds=_WHOLE,
        boundObjectRef=_object(**_texts("kind", "apiVersion", "name", "uid")),
    ),
)
REVIEW: Final = _object(metadata=_METADATA, spec=_object(token=_TEXT, audiences=_list({"type": "string"})))


def builtin_shape(resource_key: str) -> JsonObject:
    """The shape of a built-in kind's objects, without metadata."""
    return _BUILTIN.get(resource_key, _PLAIN)


def check_shape(value: Any, shape: JsonObject, before: Any = None, path: str = "") -> None:
    """Raise a 400 if a field of ``value`` has the wrong type; parts that are equal in ``before`` are skipped."""
    # Only the first: a decoder stops there too.
    wrong = next(violations(value, shape, path, before), None)
    if wrong is not None:
        raise bad_request(wrong.message)


def check_metadata(metadata: Any, before: Any = None) -> None:
    """``check_shape`` for the metadata of an object."""
    check_shape(metadata, _METADATA, before, "metadata")
