"""What the program answers over HTTP: ``/metrics``, ``/healthz``, ``/readyz`` and ``/explain/NAMESPACE/KIND/NAME``.

An explanation is read from the caches as they are: the recommendation, the decision, and what held it back (S1.11).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import FastAPI, Path
from starlette.responses import JSONResponse, Response

from protocol.kubernetes.objects import Json, JsonObject, child, items, name_of
from protocol.kubernetes.resources import HORIZONTAL_AUTOSCALERS, VERTICAL_AUTOSCALERS, VM_GROUPS, Resource
from protocol.messages import ObjectName
from scheduler_plugin.groups.app import GroupsProgram
from scheduler_plugin.groups.controllers.cache import Cache
from scheduler_plugin.groups.controllers.desired_state import DesiredState, GroupPolicy, InvalidSpecError
from scheduler_plugin.groups.controllers.group_controller import GroupController
from scheduler_plugin.groups.objects.autoscalers import horizontal_of, vertical_of
from scheduler_plugin.groups.objects.targets import (
    TARGET_KINDS,
    InvalidTargetError,
    TargetFields,
    workload_of,
    write_amounts,
    write_container,
)
from scheduler_plugin.groups.objects.vm_use import as_noted
from scheduler_plugin.web.probes import probes_app, standing


def explanation(cache: Cache, policy: GroupPolicy, name: ObjectName) -> Json | None:
    """The account of one group as JSON; None if there is no such group."""
    group = cache.get(policy.kind, name)
    if group is None:
        return None
    summary = _said(policy.kind, group)
    try:
        desired = policy.desired(group)
    except InvalidSpecError as error:
        return {**summary, "problem": str(error)}
    return {
        **summary,
        "target": _target(cache, desired, group),
        "recommended": _recommended(cache, desired, group),
    }


def vm_group_explanation(cache: Cache, name: ObjectName) -> Json | None:
    """The same of a VirtualMachineGroup: its members instead of a target."""
    group = cache.get(VM_GROUPS, name)
    if group is None:
        return None
    status = child(group, "status")
    return {**_said(VM_GROUPS, group), "members": items(status, "members"), "scaling": child(status, "scaling")}


def _said(kind: Resource, group: JsonObject) -> Json:
    status = child(group, "status")
    return {
        "group": f"{kind.kind} {name_of(group)}",
        "conditions": items(status, "conditions"),
        "kept": items(status, "kept"),
        "explanation": status.get("explanation", []),
        "underWay": child(status, "intent") or None,
        "lastScaled": child(status, "lastScaled") or None,
    }


def _target(cache: Cache, desired: DesiredState, group: JsonObject) -> Json:
    reference = desired.target
    kind = TARGET_KINDS[reference.group, reference.kind]
    target = cache.get(kind.resource, ObjectName(name_of(group).namespace, reference.name))
    if target is None:
        return {"name": str(reference), "problem": "it is not there"}
    try:
        workload = workload_of(target, kind)
    except InvalidTargetError as error:
        return {"name": str(reference), "problem": str(error)}
    sizes = [write_container(container) for container in workload.containers]
    return {"name": str(reference), "replicas": workload.replicas, "ready": workload.ready, "containers": sizes}


def _recommended(cache: Cache, desired: DesiredState, group: JsonObject) -> Json:
    namespace = name_of(group).namespace
    # For VMs the note of our recommender replaces the status, as in the controller.
    is_pods = TARGET_KINDS[desired.target.group, desired.target.kind].shape is TargetFields.TEMPLATE
    effective: Callable[[JsonObject], JsonObject] = (lambda autoscaler: autoscaler) if is_pods else as_noted
    recommended: Json = {}
    if desired.hpa is not None:
        hpa = cache.get(HORIZONTAL_AUTOSCALERS, ObjectName(namespace, desired.hpa.name))
        horizontal = None if hpa is None else horizontal_of(effective(hpa))
        recommended["replicas"] = None if horizontal is None else horizontal.desired
        recommended["bounds"] = None if horizontal is None else {"min": horizontal.min, "max": horizontal.max}
    if desired.vpa is not None:
        vpa = cache.get(VERTICAL_AUTOSCALERS, ObjectName(namespace, desired.vpa.name))
        recommended["containers"] = [] if vpa is None else _sizes(effective(vpa))
    return recommended


def _sizes(vpa: JsonObject) -> list[Json]:
    try:
        recommendation = vertical_of(vpa)
    except ValueError as error:
        return [{"problem": str(error)}]
    return (
        []
        if recommendation is None
        else [{"name": container.name, **write_amounts(container.target)} for container in recommendation.containers]
    )


Name = Annotated[str, Path(max_length=253)]


def groups_app(program: GroupsProgram) -> FastAPI:
    """The only application: nothing here changes anything."""
    app = probes_app(
        "autoscale-groups",
        "Why groups are as many and as large as they are.",
        lambda: standing(program.cache.missing, program.leadership.leads),
        program.page,
    )

    @app.get("/explain/{namespace}/{kind}/{name}")
    async def explain(namespace: Name, kind: Name, name: Name) -> Response:
        """Explain the count and size of replicas: what was wanted and kept, and by which rule (S1.11)."""
        account = _explained(program, kind.lower(), ObjectName(namespace, name))
        if account is None:
            return JSONResponse({"error": f"there is no {kind} {namespace}/{name}"}, 404)
        return JSONResponse(account)

    return app


def _explained(program: GroupsProgram, kind: str, name: ObjectName) -> Json | None:
    """The account of the group; None if there is no such kind or group. ``kind`` is in lower case."""
    if kind == VM_GROUPS.kind.lower():
        return vm_group_explanation(program.cache, name)
    for candidate, controller in program.controllers.items():
        # Kinds in any case, as kubectl takes them.
        if candidate.lower() == kind and isinstance(controller, GroupController):
            return explanation(program.cache, controller.policy, name)
    return None
