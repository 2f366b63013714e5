"""A whole scheduler in process: hostile requests to its listeners, and hostile objects beside healthy VMs.

Rules that hold here:

- No request is answered with 5xx, other than 503 for a fact that has not arrived.
- Whatever one VM's objects say, the reservations of all other VMs stay as they are, no invariant of the ledger breaks,
  a VM that cannot be read counts as the most that it may be, and no pod is asked to request more than its node has.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from time import process_time
from typing import Final

import httpx2 as httpx

from protocol.kubernetes.pages import UnreadableAnswerError, read_event
from protocol.names import ANNOTATION_PERMIT
from protocol.runtime.kubernetes.watches.informer import FactInformer
from protocol.units import Resources
from protocol.virtual_machine import VirtualMachine
from scheduler_plugin.ledger.accounts.claims import Claim
from scheduler_plugin.ledger.events import ResizeDue, ResizeRefused
from scheduler_plugin.ledger.facts import WITHOUT_GUEST
from scheduler_plugin.ledger.invariants import violations
from tests.fake_clock import FakeClock
from tests.fuzz import samples
from tests.fuzz.mutations import damaged, damaged_text, encoded
from tests.fuzz.targets import LIMIT
from tests.local.apiserver.bad_input import bad_requests
from tests.local.apiserver.test_bad_input import Served
from tests.scheduler_plugin.fake_cluster import NODES, PODS, VMS, FakeCluster
from tests.scheduler_plugin.objects import Obj, node, token_of, token_text, vm, vm_pod
from tests.scheduler_plugin.running import Running, following_settings, running, usual_settings

SIZE: Final = ("40", "160Gi")
"""Of every node."""

NOT_YET: Final = 503
PATIENCE: Final = 5.0
"""Seconds of real time after which a request counts as never answered."""

REQUESTS: Final[tuple[tuple[str, Obj | list[Obj]], ...]] = (
    *((f"agents/?v={version}", {"protoVersion": version, **samples.AGENT}) for version in range(8)),
    ("agents/permits", samples.BATCH),
    ("agents/permits", [{"protoVersion": 4, **samples.AGENT}] * 3),
    ("extender/filter", samples.FILTER),
    ("extender/filter", samples.FILTER_NAMES),
    ("extender/prioritize", samples.FILTER),
    ("extender/prioritize", samples.FILTER_NAMES),
    ("extender/bind", samples.BIND),
    ("extender/preempt", samples.PREEMPT),
)


def feed_apps(seed: int, count: int) -> list[str]:
    """Sends ``count`` damaged requests; what was wrong, in words."""
    return asyncio.run(_requests(seed, count))


def feed_ledger(seed: int, count: int) -> list[str]:
    """Shows a scheduler ``count`` damaged objects of one VM; what was wrong, in words."""
    return asyncio.run(_objects(seed, count))


def feed_api_server(seed: int, count: int) -> list[str]:
    """Sends ``count`` bad requests to the local API server; what was wrong, in words."""
    return asyncio.run(_api_requests(seed, count))


async def _api_requests(seed: int, count: int) -> list[str]:
    wrong, served = [], Served()
    await served.define()
    await served.seed()
    for number, bad in enumerate(bad_requests(Random(f"{seed}/api"), count)):
        try:
            async with asyncio.timeout(PATIENCE):
                answer = await served.send(bad)
        except (Exception, TimeoutError) as error:  # noqa: BLE001 - finding errors of any kind is the point
            wrong.append(f"API request {number}: {type(error).__name__}: {error}\n  {bad!r:.400}")
            continue
        if answer.status_code >= httpx.codes.INTERNAL_SERVER_ERROR:
            wrong.append(f"API request {number}: answered {answer.status_code}\n  {bad!r:.400}")
    await served.http.aclose()
    return wrong


@asynccontextmanager
async def scheduler(*, follows: bool = False) -> AsyncIterator[Running]:
    """A scheduler with three VMs on one of two nodes. ``follows``: requests of pods follow their VMs."""
    cluster = FakeCluster()
    for name in ("n1", "n2"):
        cluster.put(NODES, node(name, *SIZE))
    for name in ("db", "other", "third"):
        cluster.put(VMS, samples.whole_vm(name) if name == "db" else vm(name))
        cluster.put(PODS, vm_pod(name, "n1"))
    cluster.tokens["t"] = token_of(vm_pod("db"))
    async with running(cluster, FakeClock(), following_settings() if follows else usual_settings()) as found:
        yield found


async def _requests(seed: int, count: int) -> list[str]:
    wrong = []
    async with scheduler() as found:
        for number in range(count):
            random = Random(f"{seed}/request/{number}")
            path, example = random.choice(REQUESTS)
            body = encoded(damaged(example, random, random.choice((1, 1, 2, 4))))
            if random.random() < 0.1:
                body = damaged_text(body, random)
            problem = await _sent(found, path, body)
            if problem is not None:
                wrong.append(f"request {number} to {path}: {problem}\n  {body!r:.400}")
    return wrong


async def _sent(found: Running, path: str, body: bytes) -> str | None:
    headers = {"Authorization": f"Bearer {token_text('t')}"}
    spent = LIMIT
    for _ in range(3):  # noise only ever adds
        began = process_time()
        try:
            async with asyncio.timeout(PATIENCE):
                answer = await found.client.post(f"http://{path}", content=body, headers=headers)
        except (Exception, TimeoutError) as error:  # noqa: BLE001 - finding errors of any kind is the point
            return f"{type(error).__name__}: {error}"
        spent = min(spent, process_time() - began)
        if answer.status_code >= httpx.codes.INTERNAL_SERVER_ERROR and answer.status_code != NOT_YET:
            return f"answered {answer.status_code}: {answer.text[:200]}"
        if spent < LIMIT:
            break
    broken = violations(found.parts.context.ledger)
    return f"{broken}" if broken else None if spent < LIMIT else f"cost {spent * 1000:.0f} ms"


def _claims(found: Running) -> dict[str, Claim]:
    return {claim.pod.name.name: claim for claim in found.parts.context.ledger.claims.values()}


def _reserved(found: Running) -> dict[str, Resources]:
    return {name: claim.reserved for name, claim in _claims(found).items() if name != "db-pod"}


async def _objects(seed: int, count: int) -> list[str]:
    wrong = []
    async with scheduler(follows=True) as found:
        healthy, feed = _reserved(found), found.parts.context.feed
        found.cluster.is_away = True  # its objects are older than those that are shown, as in a restored store
        for number in range(count):
            version = 1000 + 2 * number
            feed.vms.learn(_versioned(samples.whole_vm(), version))
            feed.pods.learn(_versioned(samples.whole_pod(), version))
            line = _line(Random(f"{seed}/object/{number}"), version + 1)
            problem = _shown(found, line, healthy)
            if problem is not None:
                wrong.append(f"object {number}: {problem}\n  {line!r:.400}")
            if number % 64 == 0:
                await asyncio.sleep(0)
    return wrong


def _versioned(obj: Obj, version: int) -> Obj:
    return {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(version)}}


def _line(random: Random, version: int) -> bytes:
    """A change of the VM or its pod, damaged anywhere but in what names it."""
    pods = [("pod", samples.whole_pod()), ("pod", samples.growing_pod())]
    kind, whole = random.choice([("vm", samples.whole_vm()), *pods])
    changed = damaged(whole, random, random.choice((1, 1, 2, 4)))
    obj = changed if isinstance(changed, dict) else whole
    metadata = obj.get("metadata")
    names = {key: whole["metadata"][key] for key in ("namespace", "name", "uid")}
    kept = {**(metadata if isinstance(metadata, dict) else {}), **names}
    text = encoded(_versioned({**obj, "metadata": kept}, version))
    return b'{"type":"MODIFIED","kind":"' + kind.encode() + b'","object":' + text + b"}"


def _shown(found: Running, line: bytes, healthy: dict[str, Resources]) -> str | None:
    feed, ledger = found.parts.context.feed, found.parts.context.ledger
    informer: FactInformer[object] = feed.vms if b'"kind":"vm"' in line[:40] else feed.pods  # type: ignore[assignment]
    gc.disable()  # to look through the heap of a whole test run is not what an object costs
    began = process_time()
    try:
        event = read_event(line)
        informer._event(event)
    except UnreadableAnswerError:
        return None
    except Exception as error:  # noqa: BLE001 - finding errors of any kind is the point
        return f"{type(error).__name__}: {error}"
    finally:
        spent = process_time() - began
        gc.enable()
    now = _reserved(found)
    if now != healthy:
        return f"the reservations of others changed: {now}"
    if broken := violations(ledger):
        return f"{broken}"
    free = ledger.rooms["n1"].free
    too_little = _less_than_it_may_be(_claims(found).get("db-pod"), feed.vms.facts.get(event.name), free)
    if misjudged := too_little or _larger_than_its_node(found):
        return misjudged
    return f"cost {spent * 1000:.0f} ms" if spent > 2 * LIMIT else None


def _larger_than_its_node(found: Running) -> str | None:
    """True if the pod is asked to request more than its node has."""
    ledger, now = found.parts.context.ledger, found.clock.now()
    if "pod-db" in ledger.claims:
        ledger.claims["pod-db"].resizes = None  # what was refused of the object before is no reason to wait
    order, _ = ledger.apply(ResizeDue("pod-db"), now)
    if order is None:
        return None
    ledger.apply(ResizeRefused(order, ""), now)
    broken = violations(ledger)
    return f"{broken}" if broken else None if order.size.within(Resources.parse(*SIZE)) else f"asked for {order.size}"


def _less_than_it_may_be(claim: Claim | None, vm: VirtualMachine | None, free: Resources) -> str | None:
    """The reason why an unreadable VM is accounted too low; None if it is not."""
    if claim is None or vm is None or claim.vm is None or claim.is_unbounded:
        return None
    most = _most(vm)
    if most is None or not _is_short(most, claim.reserved, claim.reserved + free):
        return None
    return f"counts as {claim.reserved}, less than the {most} that it may be: {vm.unreadable or vm.problems}"


def _is_short(most: Resources, reserved: Resources, reach: Resources) -> bool:
    """True if the VM lacks something for which there is room."""
    return reserved.cpu < most.cpu <= reach.cpu or reserved.mem < most.mem <= reach.mem


def _most(vm: VirtualMachine) -> Resources | None:
    """Upper bound of a VM with unreadable parts: the status bounds the guest, the permit bounds the agent.

    A permit is no more than the VM's maximum, which its running machine may bound.
    """
    if vm.unreadable:
        return vm.bounds.max
    if vm.phase not in WITHOUT_GUEST and any(problem.startswith("status.") for problem in vm.problems):
        return vm.at_most
    is_permit = vm.enabled and any(problem.startswith(PERMIT) for problem in vm.problems)
    return vm.bounds.max if is_permit else None


PERMIT: Final = f"metadata.annotations[{ANNOTATION_PERMIT}]"
