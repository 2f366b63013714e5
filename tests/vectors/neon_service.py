"""The family neon: HTTP statuses, against the whole scheduler over a fake cluster.

A text alone tells a case. It is understood by its phrases: each names one thing that is wrong with a request, or the
state in which it arrives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from protocol.messages import ObjectName
from scheduler_plugin.ledger.events import MigrationSeen
from scheduler_plugin.ledger.facts import MigrationFacts
from tests.fake_clock import FakeClock
from tests.scheduler_plugin.fake_cluster import NODES, PODS, VMS, FakeCluster
from tests.scheduler_plugin.objects import node, plain_pod, token_of, token_text, vm, vm_pod
from tests.scheduler_plugin.running import Running, running
from tests.vectors.case import Case
from tests.vectors.phrases import Phrases, told, understood
from tests.vectors.registry import Answer, Check, Declined

POD: Final = vm_pod("pg", "n1")
_AGENTS: Final = "http://agents/"


def http_status(case: Case) -> object:
    """The status of a request to the agents' port."""
    _, request = understood(_REQUESTS, case.text, "request")
    return asyncio.run(_answered(request))


async def _answered(request: Callable[[Running], Awaitable[int]]) -> int:
    cluster = FakeCluster()
    cluster.put(NODES, node("n1"))
    cluster.put(VMS, vm("pg"))
    cluster.put(PODS, POD)
    cluster.put(PODS, plain_pod("shop", node="n1"))
    async with running(cluster, FakeClock()) as scheduler:
        return await request(scheduler)


async def _unsupported_version(scheduler: Running) -> int:
    return (await scheduler.ask(POD, 1, 4, protoVersion=8)).status_code


async def _zero_unit(scheduler: Running) -> int:
    return (await scheduler.ask(POD, 1, 4, protoVersion=7, computeUnit={"vCPUs": 0, "mem": "1Gi"})).status_code


async def _no_metrics(scheduler: Running) -> int:
    return (await scheduler.ask(POD, 1, 4, protoVersion=1, metrics=None)).status_code


async def _fractional_cpu(scheduler: Running) -> int:
    return (await scheduler.ask(POD, "250m", 4, protoVersion=2)).status_code


async def _unreadable(scheduler: Running) -> int:
    headers = {"Authorization": f"Bearer {token_text('token-pg')}"}
    return (await scheduler.client.post(_AGENTS, content=b"{", headers=headers)).status_code


async def _other_method(scheduler: Running) -> int:
    return (await scheduler.client.get(_AGENTS)).status_code


async def _unknown_pod(scheduler: Running) -> int:
    return (await scheduler.ask(vm_pod("unknown"), 1, 4)).status_code


async def _no_vm(scheduler: Running) -> int:
    pod = plain_pod("shop", node="n1")
    scheduler.cluster.tokens["token-shop"] = token_of(pod)
    return (await scheduler.ask(pod, 1, 4)).status_code


async def _no_token(scheduler: Running) -> int:
    return (await scheduler.ask(POD, 1, 4, token="")).status_code


async def _token_of_another_pod(scheduler: Running) -> int:
    scheduler.cluster.tokens["token-shop"] = token_of(plain_pod("shop", node="n1"))
    return (await scheduler.ask(POD, 1, 4, token="token-shop")).status_code


async def _changed_while_migrating(_: Running) -> int:
    raise Declined("a change while migrating is answered with what the VM may have; it grows when that is over (S4.9)")


async def _same_while_migrating(scheduler: Running) -> int:
    order = MigrationFacts(ObjectName("default", "m"), "uid-m", 1, ObjectName("default", "pg"))
    scheduler.parts.context.ledger.apply(MigrationSeen(order), scheduler.parts.context.clock.now())
    return await _ordinary(scheduler)


async def _ordinary(scheduler: Running) -> int:
    return (await scheduler.ask(POD, 1, 4)).status_code


_REQUESTS: Final[Phrases[Callable[[Running], Awaitable[int]]]] = (
    (told(r"\bsame\b.*\bmigrat|\b(unchanged|no change)\b.*\bmigrat"), _same_while_migrating),
    (told(r"\b(change|other|different|more|less|increase|decrease)\w*\b.*\bmigrat"), _changed_while_migrating),
    (told(r"\bzero\b.*\bunit\b|\bunit\b.*\bzero\b"), _zero_unit),
    (told(r"\b(nil|null|no|without|missing)\b.*\bmetrics\b.*\b(v1\.0|before)\b"), _no_metrics),
    (told(r"\bfraction\w*\b.*\b(v1\.[01]|before)\b"), _fractional_cpu),
    (
        told(r"\b(unsupported|too old|too new|future|unknown|wrong)\b.*\bversion|\bversion\b.*\b(unsupported|too)\b"),
        _unsupported_version,
    ),
    (told(r"\b(malformed|invalid|unreadable|undecodable|bad|not|no)\b.*\b(json|body)\b"), _unreadable),
    (told(r"\bmethod\b|\b(GET|PUT|DELETE|PATCH)\b|\bnot (a )?POST\b"), _other_method),
    (told(r"\b(unknown|no such|missing)\b.*\bpod\b|\bpod\b.*\b(unknown|not (found|known))\b"), _unknown_pod),
    (told(r"\bnot a VM\b|\bno VM\b|\bwithout a VM\b"), _no_vm),
    (told(r"\b(another|other|foreign)\b.*\btoken\b|\btoken\b.*\b(another|other)\b"), _token_of_another_pod),
    (told(r"\b(no|missing|without)\b.*\btoken\b|\bunauthenticated\b"), _no_token),
    (told(r"\b(ok|success\w*|valid|ordinary|normal|granted|accepted)\b"), _ordinary),
)
"""Phrases that tell a request; the first that matches is used."""

GROUPS: Final[Mapping[str, Check | Answer]] = {"http_status": Check(http_status, needs=("expected",))}
