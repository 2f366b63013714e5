"""TLS ports of our programs and of our webhooks, each looked at through ``kubectl port-forward``."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from protocol.kubernetes.conditions import holds
from protocol.kubernetes.objects import Json, child, name_of, text, whole
from scripts.autoscale.check.facts import CheckFacts, Served, Webhook
from scripts.autoscale.check.gathering.forwarding import CannotForwardError, ForwardingError, Kubectl
from scripts.autoscale.check.gathering.tls_looks import reviewed, shown
from scripts.autoscale.check.installed_programs import PROGRAMS, Program, leading_pod
from scripts.autoscale.check.judges.certificate_ages import our_webhooks
from scripts.autoscale.check.looks import Look, SiteObservations, Unseen, UnseenError

_HTTPS: Final = 443


@dataclass(frozen=True, slots=True)
class _Hook:
    """A webhook of ours: where it listens, and by what authority it is trusted."""

    name: str
    namespace: str
    service: str
    port: int
    path: str
    bundle: bytes


async def tls_ports(kubectl: Kubectl, facts: CheckFacts) -> tuple[dict[str, Look[Served]], dict[str, Look[Webhook]]]:
    """Certificate of each port, and the answer of each webhook."""
    served, answers = dict[str, Look[Served]](), dict[str, Look[Webhook]]()
    chosen = [
        (program, pod) for program in PROGRAMS if program.tls and (pod := leading_pod(facts, program.name)) is not None
    ]
    hooks = _hooks(facts)
    of_pods = [_of_pod(kubectl, program, pod, hooks) for program, pod in chosen]
    of_hooks = [_of_hook(kubectl, hook) for hook in hooks]
    for certificates in await asyncio.gather(*of_pods):
        served |= certificates
    for name, answer in zip((hook.name for hook in hooks), await asyncio.gather(*of_hooks), strict=True):
        answers[name] = answer
    return served, answers


def _hooks(facts: CheckFacts) -> list[_Hook]:
    try:
        webhooks = our_webhooks(facts)
    except UnseenError:
        # Without the list of webhooks there is nothing to ask; their own check says why.
        return []
    return [_hook(webhook) for _, webhook in webhooks if child(webhook, "clientConfig", "service")]


def _hook(webhook: Json) -> _Hook:
    config = child(webhook, "clientConfig")
    service = child(config, "service")
    try:
        bundle = base64.b64decode(text(config, "caBundle"))
    except ValueError:
        # A malformed bundle vouches for nothing, which the check of trust reports.
        bundle = b""
    # The API server takes 443 if a webhook names no port.
    port = whole(service, "port") or _HTTPS
    where = (text(service, "namespace"), text(service, "name"))
    return _Hook(text(webhook, "name"), *where, port, text(service, "path"), bundle)


async def _of_pod(kubectl: Kubectl, program: Program, pod: Json, hooks: Sequence[_Hook]) -> dict[str, Look[Served]]:
    name = name_of(pod)
    titles = {port: f"{program.name}:{port}" for port in program.tls}
    vouching = {
        # The API server verifies a webhook's certificate for this host name.
        hook.name: (hook.bundle, f"{hook.service}.{hook.namespace}.svc")
        for hook in hooks
        if hook.service == program.name
    }
    try:
        async with kubectl.forward(name.namespace, f"pod/{name.name}", program.tls) as ports:
            return {titles[port]: await shown(here, vouching) for port, here in ports.items()}
    except CannotForwardError as error:
        # A slow way is a failure, but without kubectl or the right to forward the look is skipped.
        return dict.fromkeys(titles.values(), Unseen(str(error), has_failed=error.is_slow))
    except ForwardingError as error:
        return dict.fromkeys(titles.values(), Unseen(str(error), has_failed=holds(pod, "Ready")))


async def _of_hook(kubectl: Kubectl, hook: _Hook) -> Look[Webhook]:
    try:
        async with kubectl.forward(hook.namespace, f"service/{hook.service}", [hook.port]) as ports:
            return SiteObservations(await reviewed(ports[hook.port], hook.name, hook.path))
    except CannotForwardError as error:
        return Unseen(str(error), has_failed=error.is_slow)
    # The API server would get no answer from this webhook either.
    except ForwardingError as error:
        return SiteObservations(Webhook(hook.name, str(error)))
