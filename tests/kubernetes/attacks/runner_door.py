"""The ports of a runner pod, and a controller that speaks to one: real TLS, real reviews of tokens."""

from __future__ import annotations

import json
from pathlib import Path

from deploy.neonvm.access.callers import AGENT, CONTROLLER
from deploy.neonvm.access.connections import ImpostorError, RunnerConnections
from protocol.kubernetes.access_reviews import identity_in
from protocol.names import RUNNER_AUDIENCE
from tests.kubernetes.attacks import doors
from tests.kubernetes.attacks.doors import Door
from tests.kubernetes.attacks.world import Obj
from tests.kubernetes.failing.fleet import Fleet, Vm
from tests.neonvm.access.secured_pod import SecuredPod, secured_pod, showing, stranger

_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
_QUIT = {"execute": "quit"}
_ASK = {"execute": "query-status"}


async def of_runner(fleet: Fleet, vm: Vm, other: Vm, folder: Path) -> dict[Door, str]:
    """Callers that the runner of ``vm`` accepts, and impostors that a controller accepts as the runner."""
    own = await fleet.pod(vm)
    async with secured_pod(folder) as pod:
        async with secured_pod(_made(folder / "agents")) as another:
            found = await _at_the_ports(pod) | {doors.AGENTS_AT_RUNNER: await _resized(another, showing(AGENT).context)}
        tokens = {
            doors.OWN_RUNNER: await fleet.token("default", "vm-agent", RUNNER_AUDIENCE, own),
            doors.OTHER_RUNNER: await fleet.token("default", "vm-agent", RUNNER_AUDIENCE, await fleet.pod(other)),
            doors.API_TOKEN: await fleet.token("default", "vm-agent", "", own),
            doors.NO_RUNNER: "admin",
        }
        for door, token in tokens.items():
            pod.token.write_text(token)
            found[door] = await _spoken_to(fleet, pod, own)
    return found


async def _at_the_ports(pod: SecuredPod) -> dict[Door, str]:
    ours, theirs = showing().context, showing(CONTROLLER, by="theirs").context
    return {
        doors.CONTROLLER_AT_RUNNER: await _resized(pod, ours),
        doors.PLAIN_AT_RUNNER: await _resized(pod, None),
        doors.NOBODY_AT_RUNNER: await _resized(pod, stranger()),
        doors.STRANGER_AT_RUNNER: await _resized(pod, theirs),
        doors.CONTROLLER_AT_MONITOR: _heard(await pod.says(ours, _ASK)),
        doors.ENDS_A_GUEST: _heard(await pod.says(ours, _QUIT)),
        doors.NOBODY_AT_MONITOR: _heard(await pod.says(stranger(), _QUIT)),
        doors.AGENT_AT_MONITOR: _heard(await pod.says(showing(AGENT).context, _QUIT)),
    }


async def _resized(pod: SecuredPod, context: object) -> str:
    order = {"vcpus": 2.5}
    answer = await pod.ask(context, "POST", "/cpu_change", order)  # type: ignore[arg-type]  # a context, or none at all
    return doors.TLS if answer is None else {200: "", 403: doors.NOT_CONTROLLER}.get(answer.status, str(answer.status))


def _heard(said: list[str]) -> str:
    if not said:
        return doors.NOT_CONTROLLER
    return doors.GATE if "error" in json.loads(said[-1]) else ""


async def _spoken_to(fleet: Fleet, pod: SecuredPod, own: Obj) -> str:
    """True if a controller takes ``pod`` for the pod ``own`` of the cluster."""

    async def pod_of(token: str) -> str:
        spec = {"token": token, "audiences": [RUNNER_AUDIENCE]}
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec}
        found = identity_in((await fleet.http.post(_REVIEWS, json=body)).json(), RUNNER_AUDIENCE)
        return (found.pod_uid or "") if found is not None else ""

    place = pod.place
    meant = type(place)(place.name, own["metadata"]["uid"], place.address, place.api, place.monitor)
    try:
        (await RunnerConnections(showing, pod_of).api(meant)).close()
    except ImpostorError:
        return doors.NOT_PROVEN
    return ""


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder
