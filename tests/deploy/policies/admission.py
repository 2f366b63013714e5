"""Evaluates ValidatingAdmissionPolicies as kube-apiserver does: match, conditions, variables, rules.

A policy with parameters is asked once for each of them. A variable without a value, and a rule that cannot be
evaluated, refuse: all our policies fail closed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from deploy.local.apiserver.schema.cel import EvaluationError, compiled, evaluate
from tests.deploy.manifests import Document

_OPERATIONS: Final = {"POST": "CREATE", "PATCH": "UPDATE", "PUT": "UPDATE", "DELETE": "DELETE"}
_NAMES: Final = ("request", "object", "oldObject", "namespaceObject", "params", "variables")
PRIORITIES: Final[list[Document]] = [
    {"metadata": {"name": "system-node-critical"}, "value": 2_000_001_000},
    {"metadata": {"name": "high"}, "value": 1_000},
    {"metadata": {"name": "usual"}, "value": 0, "globalDefault": True},
]
"""The PriorityClasses of the cluster, by which a policy may ask as its parameters."""


@dataclass(frozen=True, slots=True)
class Write:
    """A write as admission sees it, after authorization: who, what, and the object before and after.

    ``labels`` are those of its namespace.
    """

    username: str
    operation: str
    group: str
    resource: str
    namespace: str = ""
    subresource: str = ""
    after: Document | None = None
    before: Document | None = None
    extra: Mapping[str, list[str]] = field(default_factory=dict)
    name: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def request(self) -> Document:
        """``request`` in expressions: what is empty is left out."""
        user = {"username": self.username, **({"extra": dict(self.extra)} if self.extra else {})}
        found = {
            "operation": self.operation,
            "resource": {"group": self.group, "version": "v1", "resource": self.resource},
            "userInfo": user,
        }
        more = {"name": self.name, "namespace": self.namespace, "subResource": self.subresource}
        return found | {name: value for name, value in more.items() if value}


def write_by(username: str, method: str, path: str, before: Document | None, after: Document | None) -> Write:
    """A request to the API server as admission sees it."""
    _, root, *rest = path.split("/")
    group, rest = ("", rest[1:]) if root == "api" else (rest[0], rest[2:])
    namespace = rest[1] if rest[0] == "namespaces" and len(rest) > 2 else ""
    resource, name, subresource = [*(rest[2:] if namespace else rest), "", ""][:3]
    return Write(username, _OPERATIONS[method], group, resource, namespace, subresource, after, before, {}, name)


def refusal(policies: list[Document], write: Write) -> str:
    """``POLICY: MESSAGE`` of the first rule that refuses the write; empty if none does."""
    said = (_said_by(policy, write) for policy in policies if policy["kind"] == "ValidatingAdmissionPolicy")
    return next(filter(None, said), "")


def is_judged(policy: Document, write: Write) -> bool:
    """True if the policy is asked about the write."""
    rules = policy["spec"]["matchConstraints"]["resourceRules"]
    scope = _scope(write)
    return any(_covers(rule, write) for rule in rules) and all(
        evaluate(compiled(each["expression"], _NAMES), scope) for each in policy["spec"].get("matchConditions", ())
    )


def _covers(rule: Document, write: Write) -> bool:
    wanted = f"{write.resource}/{write.subresource}" if write.subresource else write.resource
    everywhere = f"{write.resource}/*" if write.subresource else "*"
    return (
        bool({"*", write.group} & set(rule["apiGroups"]))
        and bool({"*", write.operation} & set(rule["operations"]))
        and bool({"*/*", wanted, everywhere} & set(rule["resources"]))
    )


def _scope(write: Write) -> dict[str, Any]:
    metadata = {"name": write.namespace, **({"labels": dict(write.labels)} if write.labels else {})}
    namespace = {"metadata": metadata} if write.namespace else None
    objects = {"object": write.after, "oldObject": write.before, "namespaceObject": namespace}
    return {"request": write.request, **objects, "params": None, "variables": {}}


def _said_by(policy: Document, write: Write) -> str:
    if not is_judged(policy, write):
        return ""
    scope = _scope(write)
    for each in policy["spec"].get("variables", ()):
        try:
            value = evaluate(compiled(each["expression"], _NAMES), scope)
        except EvaluationError:
            continue
        scope["variables"] = {**scope["variables"], each["name"]: value}
    parameters = PRIORITIES if policy["spec"].get("paramKind", {}).get("kind") == "PriorityClass" else [None]
    for rule in policy["spec"]["validations"]:
        if not all(_holds(rule["expression"], {**scope, "params": each}) for each in parameters):
            return f"{policy['metadata']['name']}: {rule['message']}"
    return ""


def _holds(expression: str, scope: dict[str, Any]) -> bool:
    try:
        return evaluate(compiled(expression, _NAMES), scope) is True
    except EvaluationError:
        return False
