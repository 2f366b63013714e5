"""Tortoise's global configuration, with upstream's names and a default for each setting (S3.2-S3.6).

- An unknown name or invalid value is an error for the whole document.
- Upstream's settings that have no effect here are accepted and listed in ``ignored``.
- Durations are such as ``15s`` or ``24h``, amounts are Kubernetes quantities, ratios are numbers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from datetime import timedelta
from fractions import Fraction
from typing import Any, Final
from zoneinfo import ZoneInfo

from protocol.durations import parse_duration
from protocol.field_errors import shown
from protocol.units import Bytes, MilliCpu
from scheduler_plugin.groups.core.tortoise.configuration import NO_METRIC, Configuration
from scheduler_plugin.groups.core.workload import RESOURCES, Resource

LARGEST: Final = 10_000
"""Maximum of integers and ratios."""


class ConfigurationError(ValueError):
    """An invalid global configuration; the message starts with the name of the invalid setting."""


FIELDS: Final = {
    "".join(part.upper() if part in ("cpu", "hpa") else part.capitalize() for part in field.name.split("_")): field.name
    for field in fields(Configuration)
    if field.name != "ignored"
}
"""Field of ``Configuration`` by upstream's name."""

IGNORED: Final = frozenset(
    {
        "FeatureFlags",
        "IstioSidecarProxyDefaultCPU",
        "IstioSidecarProxyDefaultMemory",
        "MaximumCPURequestPerContainer",
        "MaximumMemoryRequestPerContainer",
        "MinimumCPURequestPerContainer",
        "MinimumMemoryRequestPerContainer",
        "ServiceGroups",
        "MaximumMaxReplicasPerGroup",
    }
)
"""Upstream's settings that are accepted and have no effect; every Tortoise reports those in use."""


def read_configuration(document: Mapping[str, object]) -> Configuration:
    """The defaults overridden by ``document``. Raises ``ConfigurationError``.

    >>> read_configuration({"PreferredMaxReplicas": 10, "MaximumCPURequest": "5"}).maximum_cpu_request
    MilliCpu(value=5000)
    """
    defaults = Configuration()
    changes: dict[str, object] = {"ignored": tuple(sorted(IGNORED & document.keys()))}
    for name, value in document.items():
        if name in IGNORED:
            continue
        field = FIELDS.get(name)
        if field is None:
            raise ConfigurationError(f"{name}: unknown name; expected one of {', '.join(sorted(FIELDS))}")
        try:
            # The type of the default selects the reader.
            changes[field] = _READERS[type(getattr(defaults, field))](value)
        except ValueError as error:
            raise ConfigurationError(f"{name}: {error}") from None
    configuration = replace(defaults, **changes)  # type: ignore[arg-type]  # a reader makes what the field holds
    _check(configuration)
    return configuration


def _written(value: object) -> object:
    match value:
        case MilliCpu() | Bytes():
            return value.quantity()
        case Fraction():
            return float(value)
    return value


def _positive_integer(value: object) -> int:
    # A bool is an int.
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= LARGEST:
        raise ValueError(f"expected a whole number from 1 to {LARGEST}, got {shown(value)}")
    return value


def _ratio(value: object) -> Fraction:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value <= LARGEST:
        raise ValueError(f"expected a number from 0 to {LARGEST}, got {shown(value)}")
    # By way of `str`, to get exactly the written decimal.
    return Fraction(str(value))


def _zone(value: object) -> ZoneInfo:
    try:
        return ZoneInfo(value)  # type: ignore[arg-type]  # what is no text raises
    except (KeyError, ValueError, TypeError, OSError):
        raise ValueError(f"expected a time zone such as Europe/Berlin, got {shown(value)}") from None


def _period(value: object) -> str:
    if value not in ("daily", "weekly"):
        raise ValueError(f"expected daily or weekly, got {shown(value)}")
    return str(value)


def _pattern(value: object) -> re.Pattern[str]:
    if value == "":
        return NO_METRIC
    try:
        return re.compile(value)  # type: ignore[call-overload,no-any-return]  # what is no text raises
    except (re.error, TypeError, RecursionError, OverflowError):
        raise ValueError(f"expected a regular expression, got {shown(value)}") from None


def _multipliers(value: object) -> dict[Resource, int]:
    """An integer per resource, at least 1 because a limit cannot be below its request."""
    if not isinstance(value, Mapping):
        raise ValueError(f"expected a number for each of cpu and memory, got {shown(value)}")
    multipliers: dict[Resource, int] = {}
    for name, number in value.items():
        if name not in RESOURCES:
            raise ValueError(f"expected cpu and memory, got {shown(name)}")
        multipliers[name] = _positive_integer(number)
    return multipliers


_READERS: Final[Mapping[type, Callable[[Any], object]]] = {
    int: _positive_integer,
    Fraction: _ratio,
    timedelta: lambda value: timedelta(seconds=parse_duration(value)),
    ZoneInfo: _zone,
    str: _period,
    re.Pattern: _pattern,
    dict: _multipliers,
    MilliCpu: MilliCpu.parse,
    Bytes: Bytes.parse,
}
"""Readers by the type of the default."""

_ORDERED: Final = (
    ("MinReplicasRecommendationMultiplier", "MaxReplicasRecommendationMultiplier"),
    ("MinimumTargetResourceUtilization", "MaximumTargetResourceUtilization"),
    ("MinimumMinReplicas", "MaximumMinReplicas"),
    ("MaximumMinReplicas", "MaximumMaxReplicas"),
    ("MinimumMinReplicas", "PreferredMaxReplicas"),
    ("MinimumCPURequest", "MaximumCPURequest"),
    ("MinimumMemoryRequest", "MaximumMemoryRequest"),
)
"""Pairs in which the first must not exceed the second."""

_SHARES: Final = ("ReplicaReductionFactor", "MaxAllowedScalingDownRatio", "BufferRatioOnVerticalResource")
"""Must be below 1, so that an emergency ends, containers can shrink, and a buffer is smaller than its container."""


def _check(configuration: Configuration) -> None:
    values = {name: getattr(configuration, field) for name, field in FIELDS.items()}
    try:
        # Raises `ValueError` if the hours do not divide a day.
        _ = configuration.layout
    except ValueError as error:
        raise ConfigurationError(f"RangeOfMinMaxReplicasRecommendationHours: {error}") from None
    if not values["MinReplicasRecommendationMultiplier"]:
        raise ConfigurationError("MinReplicasRecommendationMultiplier: expected more than zero")
    for name in _SHARES:
        if values[name] >= 1:
            raise ConfigurationError(f"{name}: expected less than 1, got {_written(values[name])}")
    if values["MaximumTargetResourceUtilization"] > 100:
        raise ConfigurationError("MaximumTargetResourceUtilization: expected at most 100")
    for low, high in _ORDERED:
        if values[low] > values[high]:
            raise ConfigurationError(
                f"{low}: expected at most {high} ({_written(values[high])}), got {_written(values[low])}"
            )
