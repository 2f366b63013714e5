"""Policies as people write them: a YAML file for all VMs, and an annotation for one (S0.7).

A document changes what it names; one that is refused changes nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import msgspec
from msgspec import structs

from agent.core.policy import CpuPolicy, MemoryPolicy, MonitorPolicy, Policy, PolicySection, Smoothing, Timing
from agent.original_config import in_our_words
from protocol.durations import parse_duration
from protocol.field_errors import field_message, shown
from protocol.kubernetes.objects import Json
from protocol.smoothing.default import DEFAULT_CPU, DEFAULT_MEMORY
from protocol.smoothing.policy import Resource, parse_policy
from protocol.smoothing.policy import SmoothingPolicy as Stages
from protocol.units import Bytes, QuantityError, Seconds
from protocol.yaml_text import read_yaml

SOONEST_SCRAPE: Final = 0.25
"""Seconds: over a shorter time the counters of a guest say little."""

LONGEST_POLICY: Final = 8192
"""Characters of a policy. Any VM's annotation may hold one, and parsing it holds up the agent's other VMs."""


class PolicyError(ValueError):
    """A policy that cannot be used; the message begins with the path of the bad value."""


class _Document(PolicySection, frozen=True):
    cpu: CpuPolicy
    memory: MemoryPolicy
    timing: Timing
    monitor: MonitorPolicy
    smoothing: str | dict[str, object] | None = None


AMOUNTS: Final = frozenset({"memory.kernelAllowance", "memory.cache.trickle"})
"""Fields that are amounts of memory."""

LIMITS: Final[dict[str, tuple[float, float]]] = {
    "memory.killHold": (0.0, 86_400.0),
    "memory.cache.watch": (5.0, 3600.0),
    "memory.cache.retry": (5.0, 7 * 86_400.0),
    "memory.cache.longest": (5.0, 7 * 86_400.0),
    "memory.cache.idleAfter": (5.0, 7 * 86_400.0),
    "memory.cache.remember": (5.0, 30 * 86_400.0),
    "monitor.hold": (0.0, 60.0),
    "monitor.request": (0.0, 300.0),
    "smoothing.maxGap": (1.0, 3600.0),
    "timing.tick": (1.0, 15.0),
    "timing.tickJitter": (0.0, 10.0),
    "timing.migratingTick": (0.5, 15.0),
    "timing.startSpread": (0.0, 300.0),
    "timing.unfinishedShrink": (0.0, 300.0),
    "timing.settle": (0.0, 60.0),
    "timing.stale": (1.0, 300.0),
    "timing.scrape": (SOONEST_SCRAPE, 60.0),
}
"""The bounds of every interval, in seconds. The scheduler counts on a request every 15 s."""


def read_policy(text: str, base: Policy) -> Policy:
    """``base`` with what the YAML or JSON document ``text`` names. Raises ``PolicyError``."""
    try:
        # Policies of the original agent are understood too; see ``original_config``.
        document, passed_over = in_our_words(read_yaml(text, LONGEST_POLICY))
        decoded = msgspec.convert(_over(_written(base), {} if document is None else document), _Document)
        smoothing = _smoothing(base.smoothing, decoded.smoothing)
        policy = Policy(decoded.cpu, decoded.memory, smoothing, decoded.timing, decoded.monitor, passed_over)
    # A document nested deeply enough overflows the decoder, and it may come from any user of the VM.
    except (ValueError, RecursionError) as error:
        raise PolicyError(field_message(error)) from None
    # Checks that take two fields come after the merge: one of the two may be the default.
    if policy.timing.tick_jitter >= policy.timing.tick:
        raise PolicyError(f"timing.tickJitter: expected less than timing.tick ({policy.timing.tick:g} s)")
    if policy.cpu.pressure_from >= policy.cpu.pressure_full:
        raise PolicyError(f"cpu.pressureFrom: expected less than cpu.pressureFull ({policy.cpu.pressure_full:g})")
    cache = policy.memory.cache
    if not cache.watch <= cache.retry <= cache.longest <= cache.remember:
        raise PolicyError("memory.cache: expected watch <= retry <= longest <= remember")
    # Otherwise every interval between two scrapes would count as a gap.
    if policy.smoothing.max_gap <= policy.timing.scrape:
        raise PolicyError(f"smoothing.maxGap: expected more than timing.scrape ({policy.timing.scrape:g} s)")
    return policy


def for_pod(policy: Policy) -> Policy:
    """``policy`` for a pod, whose control group counts all that its kernel holds, and costs little to read.

    >>> for_pod(Policy()).memory.kernel_allowance, for_pod(Policy()).timing.scrape
    (Bytes(value=0), 0.5)
    """
    return replace(
        policy,
        memory=structs.replace(policy.memory, kernel_allowance=Bytes(0)),
        # Half of the wait until a load is seen goes, at a tenth of the cost of a guest's page.
        timing=structs.replace(policy.timing, scrape=Seconds(max(SOONEST_SCRAPE, policy.timing.scrape / 2))),
    )


def _smoothing(base: Smoothing, found: str | dict[str, object] | None) -> Smoothing:
    """``default`` for all of our defaults; or ``cpu`` and ``memory``, each ``default`` or stages, and ``maxGap``."""
    if found is None:
        return base
    if isinstance(found, str):
        if found != "default":
            raise ValueError(f"smoothing: expected default, or policies for cpu and memory, got {shown(found)}")
        return Smoothing()
    changed = base
    for name, value in found.items():
        match name:
            case "cpu":
                changed = replace(changed, cpu=_stages(value, "cpu"))
            case "memory":
                changed = replace(changed, memory=_stages(value, "memory"))
            case "maxGap":
                changed = replace(changed, max_gap=_seconds("smoothing.maxGap", value))
            case _:
                raise ValueError(f"smoothing.{name}: unknown field; expected cpu, memory and maxGap")
    return changed


def _stages(found: object, resource: Resource) -> Stages:
    if found == "default":
        return DEFAULT_CPU if resource == "cpu" else DEFAULT_MEMORY
    path = f"smoothing.{resource}"
    stages = parse_policy(found, resource, path)
    # A document of stages names its resource; the other's would count in the wrong unit.
    if stages.resource != resource:
        raise ValueError(f"{path}.resource: expected {resource}, got {stages.resource}")
    return stages


def _written(policy: Policy) -> Json:
    """The sections of ``policy`` as a document has them."""
    return {name: msgspec.to_builtins(getattr(policy, name)) for name in ("cpu", "memory", "timing", "monitor")}


def _over(base: Json, document: object, path: str = "") -> object:
    """``base`` with what ``document``, the section below ``path``, names. The decoder judges what is no section."""
    if not isinstance(document, dict):
        return document
    named = {name: value for name, value in document.items() if value is not None or not path}
    return {**base, **{name: _read(base.get(name), value, f"{path}{name}") for name, value in named.items()}}


def _read(base: object, value: object, place: str) -> object:
    """The value as seconds or bytes if the field is a time or an amount of memory."""
    if place in LIMITS:
        return _seconds(place, value)
    if place not in AMOUNTS:
        return _over(base, value, f"{place}.") if isinstance(base, dict) else value
    try:
        return Bytes.parse(value)  # type: ignore[arg-type]  # it refuses what is no number and no text
    except QuantityError as error:
        raise ValueError(f"{place}: {error}") from None


def _seconds(path: str, value: object) -> Seconds:
    low, high = LIMITS[path]
    try:
        seconds = parse_duration(value)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    if not low <= seconds <= high:
        raise ValueError(f"{path}: expected {low:g} to {high:g} seconds, got {shown(value)}")
    return seconds
