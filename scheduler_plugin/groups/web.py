"""What the program answers over HTTP: ``/metrics``, ``/healthz``, ``/readyz`` and ``/explain/NAMESPACE/KIND/NAME``."""

from __future__ import annotations

from typing import Annotated

from fastapi import FastAPI, Path
from starlette.responses import JSONResponse, Response

from protocol.kubernetes.objects import Json
from protocol.kubernetes.resources import VM_GROUPS
from protocol.messages import ObjectName
from scheduler_plugin.groups.app import GroupsProgram
from scheduler_plugin.groups.explain import explanation, vm_group_explanation
from scheduler_plugin.web.probes import probes_app, standing

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
        if candidate.lower() == kind:
            return explanation(program.cache, controller.policy, name)
    return None
