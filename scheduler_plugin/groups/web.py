"""HTTP endpoints: ``/metrics``, ``/healthz``, ``/readyz`` and ``/explain/NAMESPACE/KIND/NAME``.

An explanation has the recommendation, the decision, and the rules that withheld changes (S1.11), all from the caches.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import FastAPI, Path
from starlette.responses import JSONResponse, Response

from protocol.kubernetes.objects import Json, JsonObject, child, items, name_of
from protocol.kubernetes.resources import HVPAS, TORTOISES, VM_GROUPS, Resource
from protocol.messages import ObjectName
from protocol.runtime.serving.probes import probes_app, readiness
from scheduler_plugin.groups.app import GroupsProgram
from scheduler_plugin.groups.controllers.group_controller import GroupController
from scheduler_plugin.groups.controllers.policies import GroupPolicy
from scheduler_plugin.groups.controllers.watches import GroupWatches
from scheduler_plugin.groups.objects.autoscalers import horizontal_of, vertical_of
from scheduler_plugin.groups.objects.targets import InvalidTargetError, workload_of, write_amounts, write_container


def explanation(watches: GroupWatches, policy: GroupPolicy, group: JsonObject) -> Json:
    """Explain one group."""
    summary, facts = _summary(policy.kind, group), watches.facts(policy, group)
    desired = watches.desired(policy, group)
    if desired is None:
        return {**summary, "problem": facts.fault}
    return {
        **summary,
        "target": {"name": str(desired.target), **_target(desired.target.resource, facts.target)},
        "recommended": {
            **({} if desired.hpa is None else _replicas(facts.hpa)),
            **({} if desired.vpa is None else {"containers": _sizes(facts.vpa)}),
        },
    }


def _summary(kind: Resource, group: JsonObject) -> Json:
    status = child(group, "status")
    return {
        "group": f"{kind.kind} {name_of(group)}",
        "conditions": items(status, "conditions"),
        "kept": items(status, "kept"),
        "explanation": status.get("explanation", []),
        "underWay": child(status, "intent") or None,
        "lastScaled": child(status, "lastScaled") or None,
    }


def _target(kind: Resource, target: JsonObject | None) -> Json:
    if target is None:
        return {"problem": "it does not exist"}
    try:
        workload = workload_of(target, kind)
    except InvalidTargetError as error:
        return {"problem": str(error)}
    sizes = [write_container(container) for container in workload.containers]
    return {"replicas": workload.replicas, "ready": workload.ready, "containers": sizes}


def _replicas(hpa: JsonObject | None) -> Json:
    recommendation = None if hpa is None else horizontal_of(hpa)
    if recommendation is None:
        return {"replicas": None, "bounds": None}
    return {"replicas": recommendation.desired, "bounds": {"min": recommendation.min, "max": recommendation.max}}


def _sizes(vpa: JsonObject | None) -> list[Json]:
    try:
        recommendation = None if vpa is None else vertical_of(vpa)
    except ValueError as error:
        return [{"problem": str(error)}]
    containers = () if recommendation is None else recommendation.containers
    return [{"name": container.name, **write_amounts(container.target)} for container in containers]


Name = Annotated[str, Path(max_length=253)]


def groups_app(program: GroupsProgram) -> FastAPI:
    """The application; read-only."""
    app = probes_app(
        "autoscale-groups",
        "Explains the replica counts and sizes of groups.",
        lambda: readiness(program.cache.missing, program.leadership.leads),
        program.page,
    )

    @app.get("/explain/{namespace}/{kind}/{name}")
    async def explain(namespace: Name, kind: Name, name: Name) -> Response:
        """Explain count and size of a group's replicas, and which rules withheld changes (S1.11)."""
        body = _explained(program, kind.lower(), ObjectName(namespace, name))
        if body is None:
            return JSONResponse({"error": f"there is no {kind} {namespace}/{name}"}, 404)
        return JSONResponse(body)

    return app


def _explained(program: GroupsProgram, kind: str, name: ObjectName) -> Json | None:
    """Explanation of the group; None if the kind or the group does not exist. ``kind`` is in lower case."""
    # Case-insensitive, as in kubectl.
    resource = next((resource for resource in (HVPAS, TORTOISES, VM_GROUPS) if resource.kind.lower() == kind), None)
    group = None if resource is None else program.cache.get(resource, name)
    if resource is None or group is None:
        return None
    controller = program.controllers.get(resource.kind)
    if isinstance(controller, GroupController):
        return explanation(program.watches, controller.policy, group)
    # A VirtualMachineGroup has members instead of a target.
    status = child(group, "status")
    return {**_summary(VM_GROUPS, group), "members": items(status, "members"), "scaling": child(status, "scaling")}
