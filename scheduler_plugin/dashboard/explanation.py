"""Sentences that explain a database's size, from its object, its agent, the scheduler, and warnings.

Shared by ``autoscale explain`` and the page.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from protocol.guest.sleep import SLEEPING, is_asleep
from protocol.kubernetes.objects import Json, child, flag, integer, items, labels_of, text, texts_at, uid_of
from protocol.names import LABEL_ENABLED
from protocol.pod_database import parse_pod_database
from protocol.units import Resources
from protocol.virtual_machine import InvalidObjectError
from scheduler_plugin.dashboard import texts
from scheduler_plugin.dashboard.core.scarcity import freed_room_sentence, waiting_sentence
from scheduler_plugin.dashboard.core.sleeping import last_sleep, sleep_sentence
from scheduler_plugin.databases import database_name, database_node, is_pod
from scheduler_plugin.texts.amounts import rounded_memory

_WARNINGS: Final = 3
_LARGEST: Final = 1e15


@dataclass(frozen=True, slots=True)
class RequestErrors:
    """Reasons why the agent and the scheduler did not respond; empty if unknown."""

    agent: str = ""
    scheduler: str = ""


def database_explanation(
    vm: Json,
    agent: Json | None,
    scheduler: Json | None,
    events: Sequence[Json] = (),
    errors: RequestErrors = RequestErrors(),
) -> Iterator[str]:
    """Yield the explanation line by line."""
    yield from _of_pod(vm) if is_pod(vm) else _of_object(vm)
    yield from _of_conditions(vm)
    yield from _of_warnings(vm, events)
    yield ""
    if agent is None:
        yield _no_agent(vm, errors.agent)
    else:
        yield from _of_agent(agent)
    yield ""
    if scheduler is None:
        reason = errors.scheduler
        yield f"The scheduler does not respond: {reason}" if reason else "The scheduler has no pod of it."
    else:
        yield from _of_problems(scheduler)
        yield from _of_mobility(scheduler)
        yield from _of_migrations(scheduler)
        yield from (f"Room is being made for it: {room}." for room in texts_at(scheduler, "makingRoom"))
        if obstacle := text(scheduler, "noRoomToGrow"):
            yield f"{obstacle}."
        if freed := freed_room_sentence(scheduler, database_name(vm).namespace):
            yield f"It {freed}."
        for pod in items(scheduler, "pods"):
            yield from _of_scheduler(pod)


def _no_agent(vm: Json, reason: str) -> str:
    # If it is not enabled, it has no agent, and nothing is wrong.
    if labels_of(vm).get(LABEL_ENABLED) != "true":
        return f"It is not enabled for autoscaling: it has no label {LABEL_ENABLED}=true."
    return f"Its agent does not respond: {reason or 'it may be starting'}"


def _of_problems(scheduler: Json) -> Iterator[str]:
    problems = scheduler.get("problems")
    # The scheduler may be of another release, so skip fields of unexpected types.
    for problem in problems if isinstance(problems, list) else ():
        yield f"  Problem: {problem}"


def _of_mobility(scheduler: Json) -> Iterator[str]:
    """Yield the reason why the scheduler does not migrate it, and recent refusals by nodes."""
    if why := text(scheduler, "staysBecause"):
        yield f"The scheduler does not migrate it on its own: {why}."
    if unread := text(scheduler, "unreadableConstraints"):
        yield f"Its scheduling constraints are unreadable, so any node may be tried: {unread}"
    refused = child(scheduler, "refusedTargets")
    for node in sorted(node for node in refused if child(refused, node).get("againInSeconds")):
        why, again = text(refused, node, "why"), _ago(child(refused, node), "againInSeconds")
        yield f"It is not scheduled to node {node} for {again}: {why}"


def _of_migrations(scheduler: Json) -> Iterator[str]:
    for migration in items(scheduler, "migrations"):
        problem, phase = text(migration, "problem"), text(migration, "phase")
        # An ended migration does not wait any more.
        if problem and phase not in ("Failed", "Succeeded"):
            age = _ago(migration, "seenForSeconds")
            yield f"Migration {text(migration, 'name')} has been {phase} for {age}: {problem}"


def warnings_about(vm: Json, events: Sequence[Json]) -> list[Json]:
    """The latest warnings about ``vm``, newest last (pure)."""
    # By UID, because an earlier object may have had this name.
    of_vm = [event for event in events if text(event, "involvedObject", "uid") == uid_of(vm)]
    warnings = [event for event in of_vm if text(event, "type") == "Warning"]
    return sorted(warnings, key=lambda event: text(event, "lastTimestamp"))[-_WARNINGS:]


def _of_warnings(vm: Json, events: Sequence[Json]) -> Iterator[str]:
    for event in warnings_about(vm, events):
        times = f" ({integer(event, 'count')} times)" if integer(event, "count") > 1 else ""
        yield f"  Warning of {text(event, 'lastTimestamp')}: {text(event, 'reason')}: {text(event, 'message')}{times}"


def _of_object(vm: Json) -> Iterator[str]:
    status, guest = child(vm, "status"), child(vm, "spec", "guest")
    has = f"{text(status, 'cpus') or '?'} vCPU and {text(status, 'memorySize') or '?'}"
    cpus, slots = child(guest, "cpus"), child(guest, "memorySlots")
    yield f"{_headline(vm, 'nothing' if is_asleep(vm) else has)}."
    if sentence := sleep_sentence(vm):
        yield f"  It is {sentence}."
    elif sentence := last_sleep(vm):
        yield f"  It {sentence}."
    size, most = text(guest, "memorySlotSize"), slots.get("max")
    yield (
        f"  Its bounds are {cpus.get('min')} to {cpus.get('max')} vCPU and {slots.get('min')} to {most} slots of "
        f"{size}; its spec asks for {cpus.get('use')} vCPU and {slots.get('use')} slots."
    )


def _of_pod(pod: Json) -> Iterator[str]:
    try:
        database = parse_pod_database(pod)
    except InvalidObjectError as error:
        yield f"{_headline(pod, 'an unreadable size')}."
        yield f"  It cannot be resized: {error}"
        return
    has = "nothing yet" if database.actual is None else f"{_resources(database.actual)}"
    low, high = database.bounds.min, database.bounds.max
    yield f"{_headline(pod, has)}."
    yield (
        f"  Its bounds are {low.cpu} to {high.cpu} vCPU and {low.mem} to {high.mem}; its container {database.container}"
        f" requests now: {_resources(database.use)}."
    )


def _headline(obj: Json, has: str) -> str:
    phase, node = text(obj, "status", "phase") or "new", database_node(obj) or "no node"
    return f"{database_name(obj)} has {has}; it is {phase} on {node}"


def _resources(size: Resources) -> str:
    return f"{size.cpu} vCPU and {size.mem}"


def _of_conditions(obj: Json) -> Iterator[str]:
    for condition in items(obj, "status", "conditions"):
        if text(condition, "message"):
            yield f"  {text(condition, 'type')}: {text(condition, 'reason')}: {text(condition, 'message')}"


def _of_agent(agent: Json) -> Iterator[str]:
    yield f"Its agent: {text(agent, 'because')}."
    for part in items(agent, "parts"):
        yield f"  - {text(part, 'name')} needs {rounded_memory(text(part, 'need'))}: {text(part, 'because')}"
    if goal := child(agent, "goal"):
        yield f"  The goal is {_size(goal)}; a compute unit is {_size(child(agent, 'compute_unit'))}."
    if guard := text(agent, "shrink_guard"):
        yield f"  Policy: {guard}"
    yield from _smoothing(agent)
    yield from (f"  Memory: it {sentence}." for sentence in texts_at(agent, "working_set"))
    # A pod has no monitor.
    if not child(agent, "resize"):
        yield from _of_monitor(child(agent, "monitor"))
    yield from _of_sleep(child(agent, "sleep"))
    yield from _metrics(child(agent, "metrics"))
    yield f"  It holds a permit for {_size(child(agent, 'permit'))}."
    if denied := child(agent, "denied"):
        yield (
            f"  DENIED by the {text(denied, 'by')}: it requested {_size(child(denied, 'wanted'))} and got "
            f"{_size(child(denied, 'granted'))}, for {_ago(denied, 'since_seconds')}, {integer(denied, 'times')} times."
        )
    for trouble in items(agent, "troubles"):
        what = text(trouble, "with_") or text(trouble, "with")
        yield f"  PROBLEM with {what} for {_ago(trouble, 'since_seconds')}: {text(trouble, 'reason')}"


def _of_monitor(monitor: Json) -> Iterator[str]:
    if refused := text(monitor, "refused"):
        yield f"  The guest's monitor refused {rounded_memory(refused)}: {text(monitor, 'refused_because')}"
    right, wrong = integer(monitor, "right_reports"), integer(monitor, "false_reports")
    if right or wrong:
        yield f"  Load reports of the guest's monitor that made the VM grow: {right} confirmed, {wrong} not."


def _of_sleep(sleep: Json) -> Iterator[str]:
    # Without a time sleep is off. A sleeping VM's object says since when it sleeps.
    if sleep.get("after_seconds") and sleep.get("state") not in SLEEPING:
        yield f"  The VM is {text(sleep, 'because')}."
    if flag(sleep, "woken_for_nothing"):
        yield f"  {texts.WOKEN_FOR_NOTHING.format(who=text(sleep, 'woken_by') or texts.SOMETHING)}."


def _smoothing(agent: Json) -> Iterator[str]:
    for step in items(agent, "smoothing"):
        before, after = rounded_memory(text(step, "before")), rounded_memory(text(step, "after"))
        changed = f"{before} → {after}" if before != after else f"{before} stays"
        yield f"    {text(step, 'resource')} {text(step, 'stage')}: {changed}: {text(step, 'reason')}"


def _metrics(metrics: Json) -> Iterator[str]:
    if not metrics:
        yield "  It has no metrics."
        return
    busy, load = metrics.get("cores_busy"), metrics.get("load1")
    used, total = (rounded_memory(text(metrics, key)) or "?" for key in ("mem_used", "mem_total"))
    memory = f"{used} of {total}"
    stalls = f"stalled on CPU {_share(metrics, 'cpu_stall')} and on memory {_share(metrics, 'mem_stall')} of the time"
    work = f"{_number(busy)} vCPU busy, load {_number(load)}, memory {memory}"
    yield f"  Measured {_ago(metrics, 'age_seconds')} ago: {work}, {stalls}."


def _of_scheduler(pod: Json) -> Iterator[str]:
    yield f"The scheduler, for {text(pod, 'pod')} on {text(pod, 'node')} ({text(pod, 'state')}):"
    floors = child(pod, "reservedBecause")
    because = ", ".join(f"{source} {_size(child(floors, source))}" for source in floors)
    yield f"  It reserves {_size(child(pod, 'reserved'))}" + (f", the largest of: {because}." if because else ".")
    denied = child(pod, "denied")
    # No denial is reported as zeros.
    if text(denied, "cpu") not in {"", "0"} or text(denied, "mem") not in {"", "0"}:
        why = f" because {text(pod, 'deniedBy')}" if text(pod, "deniedBy") else ""
        yield f"  It denies {_size(denied)}{why}, for {_ago(pod, 'deniedForSeconds')}."
        yield f"  It is {waiting_sentence(pod)}."
        if weight := pod.get("weight"):
            yield f"  While room is scarce, its weight is {weight}."
    if problem := text(pod, "permitProblem"):
        yield f"  Its last permit could not be stored, so it does not grow: {problem}"
    if requests := child(pod, "requests"):
        yield f"  Its pod requests {_size(requests)} for the guest."
    if problem := text(pod, "requestsProblem"):
        # ``capitalize`` would lower the names in it.
        yield f"  {problem[:1].upper()}{problem[1:]}."
    total, reserved = _size(child(pod, "nodeTotal")), _size(child(pod, "nodeReserved"))
    yield f"  The node has {total} for VMs and pods; {reserved} are reserved."
    if flag(pod, "migrating"):
        yield "  The VM is being migrated."


def _size(amounts: Json) -> str:
    return f"{text(amounts, 'cpu')} vCPU, {rounded_memory(text(amounts, 'mem'))}" if amounts else "nothing yet"


def _real(value: object) -> float | None:
    """The value as a number; None if it is not one, or is too large to be shown."""
    return float(value) if isinstance(value, (int, float)) and abs(value) < _LARGEST else None


def _number(value: object) -> str:
    number = _real(value)
    return "?" if number is None else f"{number:.2f}"


def _ago(source: Json, key: str) -> str:
    seconds = _real(source.get(key))
    return "an unknown time" if seconds is None else f"{seconds:.0f} s"


def _share(source: Json, key: str) -> str:
    share = _real(source.get(key))
    return "?" if share is None else f"{share:.0%}"
