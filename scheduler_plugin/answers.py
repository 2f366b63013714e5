"""``python3 -m scheduler_plugin.answers``: check from a pod that an installation responds to its clients.

``helm test`` runs it in a pod that our scheduler places, so kube-scheduler and the extender work if it runs at all. It
then requests a permit with the pod's own token, and calls the webhook as the API server does.
"""

from __future__ import annotations

import argparse
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import httpx2 as httpx
import msgspec

from protocol.messages import ObjectName
from protocol.runtime.trust import trusting

CHECK_TIMEOUT: Final = 60.0
"""Seconds until each check must pass: the installation may still be starting."""

_PAUSE: Final = 1.0
_TIMEOUT: Final = 5.0
_NO_VM: Final = "expected the pod of a VM"

Check = Callable[[], str]
"""One check; returns the problem, or an empty text. May raise ``httpx.HTTPError``."""


class _Refusal(msgspec.Struct):
    error: str = ""


class _Verdict(msgspec.Struct):
    uid: str
    allowed: bool = False


class _AdmissionReview(msgspec.Struct):
    response: _Verdict


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the programs named by the options; return 0 if all pass."""
    flags = _parser()
    options = flags.parse_args(arguments)
    if options.agents and not options.token_file:
        flags.error("--agents needs --token-file")
    context = trusting(file=options.ca)
    checks: dict[str, Check] = {}
    # A proxy from the environment cannot reach the cluster's Services.
    with httpx.Client(verify=context, timeout=_TIMEOUT, trust_env=False) as client:
        if options.agents:
            pod = ObjectName(options.namespace, options.pod)
            # Strip the newline at the end of the file.
            token = options.token_file.read_text().strip()
            checks["the agents' port"] = lambda: ask_for_permit(client, options.agents, pod, token)
        if options.webhook:
            checks["the webhook"] = lambda: review_test_pod(client, options.webhook)
        problems = {name: until_passed(check, time.monotonic, time.sleep) for name, check in checks.items()}
    for name, problem in problems.items():
        print(f"{name}: {problem or 'answers'}")
    return 1 if any(problems.values()) else 0


def _parser() -> argparse.ArgumentParser:
    flags = argparse.ArgumentParser(prog="python3 -m scheduler_plugin.answers", description=__doc__)
    flags.add_argument("--agents", default="", metavar="URL", help="the scheduler's URL for agents")
    flags.add_argument("--webhook", default="", metavar="URL", help="the injector's URL for API servers")
    flags.add_argument("--namespace", required=True, help="namespace of this pod")
    flags.add_argument("--pod", required=True, help="name of this pod")
    flags.add_argument("--token-file", type=Path, metavar="FILE", help="a token of this pod for the scheduler")
    flags.add_argument("--ca", metavar="FILE", help="CA certificates of both, in PEM")
    return flags


def ask_for_permit(client: httpx.Client, url: str, pod: ObjectName, token: str) -> str:
    """Request a permit for a pod that runs no VM.

    The expected error is that the pod runs no VM: the scheduler returns it only after it has reviewed the token,
    matched it with the pod, and found the pod.
    """
    request = {
        # It only has to be well formed; nothing is granted.
        "protoVersion": 4,
        "pod": {"namespace": pod.namespace, "name": pod.name},
        "resources": {"vCPUs": "250m", "mem": 1},
    }
    response = client.post(url, json=request, headers={"Authorization": f"Bearer {token}"})
    try:
        message = msgspec.json.decode(response.content, type=_Refusal).error
    except (ValueError, RecursionError):
        return f"{response.status_code} with a response that is not the scheduler's"
    if response.status_code == httpx.codes.BAD_REQUEST and _NO_VM in message:
        return ""
    return f"{response.status_code} {message}"


def review_test_pod(client: httpx.Client, url: str) -> str:
    """Review a pod that runs no VM: it must be allowed, with the request's uid."""
    uid = str(uuid.uuid4())
    pods = {"version": "v1", "group": ""}
    review = {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": uid,
            "kind": {**pods, "kind": "Pod"},
            "resource": {**pods, "resource": "pods"},
            "namespace": "default",
            "operation": "CREATE",
            "dryRun": True,
            "object": {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": "none-of-a-vm", "namespace": "default"},
                "spec": {"containers": [{"name": "main", "image": "none"}]},
            },
        },
    }
    response = client.post(url, json=review)
    try:
        verdict = msgspec.json.decode(response.content, type=_AdmissionReview).response
    except (ValueError, RecursionError):
        return f"{response.status_code} with an answer that is not an AdmissionReview"
    return "" if verdict.uid == uid and verdict.allowed else f"refused a pod that runs no VM: {verdict}"


def until_passed(ask: Check, now: Callable[[], float], pause: Callable[[float], None]) -> str:
    """Repeat the check until it passes, for at most ``CHECK_TIMEOUT``; return the last problem."""
    deadline = now() + CHECK_TIMEOUT
    while (problem := _problem_of(ask)) and now() < deadline:
        pause(_PAUSE)
    return problem


def _problem_of(ask: Check) -> str:
    try:
        return ask()
    except httpx.HTTPError as error:
        return f"no response: {error!s:.200}"


if __name__ == "__main__":
    sys.exit(main())
