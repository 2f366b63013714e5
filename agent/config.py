"""Decodes policies: a YAML file for all VMs, and an annotation for one (S0.7).

A document overrides the fields that it names; an invalid document changes nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import msgspec
from msgspec import structs

from agent.core.policy import (
    MIN_QUIET,
    CpuPolicy,
    MemoryPolicy,
    MonitorPolicy,
    Policy,
    PolicySection,
    SleepPolicy,
    Smoothing,
    Timing,
)
from agent.core.sleep.windows import parse_window
from agent.local_time import local_time
from agent.original_config import translate_original
from protocol.durations import parse_duration
from protocol.field_errors import field_message, shown
from protocol.kubernetes.objects import Json
from protocol.smoothing.default import DEFAULT_CPU, DEFAULT_MEMORY
from protocol.smoothing.policy import Resource, parse_policy
from protocol.smoothing.policy import SmoothingPolicy as Stages
from protocol.units import Bytes, QuantityError, Seconds
from protocol.yaml_text import read_yaml

MIN_SCRAPE_INTERVAL: Final = 0.25
"""Minimum scrape interval in seconds; counters change too little over shorter ones."""

LONGEST_POLICY: Final = 8192
"""Maximum length of a policy in characters: any user may annotate a VM, and parsing blocks the agent's other VMs."""


class PolicyError(ValueError):
    """An invalid policy; the message begins with the path of the bad value."""


class _Document(PolicySection, frozen=True):
    cpu: CpuPolicy
    memory: MemoryPolicy
    timing: Timing
    monitor: MonitorPolicy
    sleep: SleepPolicy
    smoothing: str | dict[str, object] | None = None


AMOUNTS: Final = frozenset({"memory.kernelAllowance", "memory.cache.trickle"})
"""Fields in bytes."""

LIMITS: Final[dict[str, tuple[float, float]]] = {
    "memory.killHold": (0.0, 86_400.0),
    "memory.cache.watch": (5.0, 3600.0),
    "memory.cache.retry": (5.0, 7 * 86_400.0),
    "memory.cache.longest": (5.0, 7 * 86_400.0),
    "memory.cache.idleAfter": (5.0, 7 * 86_400.0),
    "memory.cache.remember": (5.0, 30 * 86_400.0),
    "monitor.hold": (0.0, 60.0),
    "monitor.request": (0.0, 300.0),
    "sleep.after": (0.0, 7 * 86_400.0),
    "smoothing.maxGap": (1.0, 3600.0),
    "timing.tick": (1.0, 15.0),
    "timing.tickJitter": (0.0, 10.0),
    "timing.migratingTick": (0.5, 15.0),
    "timing.startSpread": (0.0, 300.0),
    "timing.unfinishedShrink": (0.0, 300.0),
    "timing.settle": (0.0, 60.0),
    "timing.stale": (1.0, 300.0),
    "timing.scrape": (MIN_SCRAPE_INTERVAL, 60.0),
}
"""Bounds of the fields in seconds. The scheduler relies on a request every 15 s."""


def read_policy(text: str, base: Policy) -> Policy:
    """``base`` with the fields of the YAML or JSON document ``text``. Raises ``PolicyError``."""
    try:
        # Policies of the original project are accepted, too.
        document, ignored = translate_original(read_yaml(text, LONGEST_POLICY))
        decoded = msgspec.convert(_over(_written(base), {} if document is None else document), _Document)
        smoothing = _smoothing(base.smoothing, decoded.smoothing)
        _check_sleep(decoded.sleep)
        policy = Policy(decoded.cpu, decoded.memory, smoothing, decoded.timing, decoded.monitor, decoded.sleep, ignored)
    # A user may write a document nested deeply enough to overflow the decoder's stack.
    except (ValueError, RecursionError) as error:
        raise PolicyError(field_message(error)) from None
    # Compare fields after the merge, because either may be a default.
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
    """``policy`` for a pod, whose cgroup includes kernel memory and is cheap to read.

    >>> for_pod(Policy()).memory.kernel_allowance, for_pod(Policy()).timing.scrape
    (Bytes(value=0), 0.5)
    """
    return replace(
        policy,
        memory=structs.replace(policy.memory, kernel_allowance=Bytes(0)),
        # This halves the delay until a load is noticed, at a tenth of the cost of scraping a guest.
        timing=structs.replace(policy.timing, scrape=Seconds(max(MIN_SCRAPE_INTERVAL, policy.timing.scrape / 2))),
    )


def _check_sleep(sleep: SleepPolicy) -> None:
    if 0.0 < sleep.after < MIN_QUIET:
        raise ValueError(f"sleep.after: expected 0 (never) or at least {MIN_QUIET:g} seconds, got {sleep.after:g}")
    for place, text in enumerate(sleep.keep_awake):
        try:
            local_time(0.0, parse_window(text).zone)
        except ValueError as error:
            raise ValueError(f"sleep.keepAwake[{place}]: {error}") from None


def _smoothing(base: Smoothing, found: str | dict[str, object] | None) -> Smoothing:
    """Decode ``smoothing``: ``default``, or ``maxGap`` and ``cpu`` and ``memory``, each ``default`` or stages."""
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


def _stages(value: object, resource: Resource) -> Stages:
    if value == "default":
        return DEFAULT_CPU if resource == "cpu" else DEFAULT_MEMORY
    path = f"smoothing.{resource}"
    stages = parse_policy(value, resource, path)
    # Stages name their resource, because CPU and memory have different units.
    if stages.resource != resource:
        raise ValueError(f"{path}.resource: expected {resource}, got {stages.resource}")
    return stages


def _written(policy: Policy) -> Json:
    """The sections of ``policy`` as a document."""
    return {
        name: msgspec.to_builtins(getattr(policy, name)) for name in ("cpu", "memory", "timing", "monitor", "sleep")
    }


def _over(base: Json, document: object, path: str = "") -> object:
    """``base`` overridden by ``document``, the section at ``path``. Anything but a section is left to the decoder."""
    if not isinstance(document, dict):
        return document
    named = {name: value for name, value in document.items() if value is not None or not path}
    return {**base, **{name: _read(base.get(name), value, f"{path}{name}") for name, value in named.items()}}


def _read(base: object, value: object, place: str) -> object:
    """The value, parsed if the field at ``place`` is in seconds or bytes."""
    if place in LIMITS:
        return _seconds(place, value)
    if place not in AMOUNTS:
        return _over(base, value, f"{place}.") if isinstance(base, dict) else value
    try:
        return Bytes.parse(value)  # type: ignore[arg-type]  # it rejects other types
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
