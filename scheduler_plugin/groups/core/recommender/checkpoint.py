"""The recommenders' memory as plain JSON for an object's status, and back.

Rules that hold here:

- A checkpoint is small: about 5 kB for each container, however long its history is.
- Reading never fails: what cannot be decoded reads as never observed.
"""

from __future__ import annotations

from math import inf, isfinite
from typing import Final

from protocol.kubernetes.objects import Json, JsonObject, child, items, text
from protocol.kubernetes.timestamps import micro_timestamp, parse_timestamp
from scheduler_plugin.groups.core.recommender.usage_histogram import UsageHistogram
from scheduler_plugin.groups.core.recommender.vertical import (
    DAY,
    ContainerHistory,
    History,
    VerticalRules,
    no_history,
)

MOST_CONTAINERS: Final = 16
"""This many containers are remembered, by name."""

MOST_DESIRES: Final = 64
"""This many entries of the stabilization window are remembered, the newest."""

_MOST: Final = 1e18  # more than any amount of memory, and than any weight


def encode_history(history: History) -> list[Json]:
    """The histograms of each container, by name."""
    return [_encoded(name, history[name]) for name in sorted(history)[:MOST_CONTAINERS]]


def _encoded(name: str, history: ContainerHistory) -> Json:
    until = history.until
    return {
        "containerName": name,
        "firstSampleTime": micro_timestamp(history.since),
        "lastSampleTime": micro_timestamp(until),
        "samples": history.samples,
        "cpu": _weights(history.cpu, until),
        "memory": _weights(history.memory, until),
        "memoryPeak": {"bytes": round(history.peak), "until": micro_timestamp(history.peak_until)},
    }


def _weights(histogram: UsageHistogram, at: float) -> Json:
    # Nine digits are enough for a weight, and the text stays short.
    return {"totalWeight": float(f"{histogram.total(at):.9g}"), "bucketWeights": histogram.checkpoint()}


def decode_history(
    found: JsonObject, field: str, rules: VerticalRules | None = None, now: float = inf
) -> dict[str, ContainerHistory]:
    """Decode the output of ``encode_history`` in ``field`` of ``found``.

    Times in the future, from a clock that was ahead, count as ``now``; otherwise nothing would be learned until then.
    """
    rules = rules or VerticalRules()
    decoded = {text(entry, "containerName"): _decoded(entry, rules, now) for entry in items(found, field)}
    return {name: history for name, history in decoded.items() if name and history is not None}


def _decoded(found: JsonObject, rules: VerticalRules, now: float) -> ContainerHistory | None:
    since, until = (parse_timestamp(found.get(name)) for name in ("firstSampleTime", "lastSampleTime"))
    if since is None or until is None or until < since:
        return None
    # The writer's clock may have been ahead: later samples would be left out until then.
    since, until = min(since, now), min(until, now)
    peak_until = parse_timestamp(child(found, "memoryPeak").get("until")) or 0.0
    empty = no_history(until, rules)
    return ContainerHistory(
        _restored(empty.cpu, child(found, "cpu"), until),
        _restored(empty.memory, child(found, "memory"), until),
        since,
        until,
        int(_number(found.get("samples"))),
        _number(child(found, "memoryPeak").get("bytes")),
        min(peak_until, until + DAY),
    )


def _restored(empty: UsageHistogram, found: JsonObject, at: float) -> UsageHistogram:
    weights = {name: int(_number(weight)) for name, weight in child(found, "bucketWeights").items()}
    return empty.restored(weights, _number(found.get("totalWeight")), at)


def _number(found: object) -> float:
    """A finite number that is not negative; 0 for anything else."""
    # `bool` is an `int` in Python.
    if isinstance(found, bool) or not isinstance(found, (int, float)):
        return 0.0
    # The JSON may hold NaN or a number that overflows later.
    return float(found) if 0 <= found <= _MOST and isfinite(found) else 0.0
