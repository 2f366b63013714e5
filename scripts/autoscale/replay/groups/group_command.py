"""The options of ``autoscale replay --group``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Final

import typer

from scripts.autoscale.replay.groups.group_model import DEFAULT_LAGS, REPLICAS, GroupPlayer
from scripts.autoscale.replay.groups.group_policies import GROUP_PLAYERS
from scripts.autoscale.replay.groups.lagging_group import Lags, Rollout

LONGEST: Final = 3600
DELETES: Final = 60.0
MOST_FAULTY: Final = REPLICAS.min - 1
"""At least one pod always serves."""

_LAGS: Final = {
    "pod_start": "start",
    "metrics_age": "metrics",
    "rollout": "rollout",
    "largest_pod": "largest",
    "broken_pods": "broken",
    "flapping_pods": "flapping",
}
"""The field of ``Lags`` that each option sets."""

AsGroup = Annotated[
    bool,
    typer.Option(
        "--group", help=f"Replay as the load of a group of replicas, with the policies {', '.join(GROUP_PLAYERS)}."
    ),
]
PodStart = Annotated[
    float | None,
    typer.Option(min=0, max=LONGEST, help="With --group: seconds until a new pod is ready (90)."),
]
MetricsAge = Annotated[
    float | None,
    typer.Option(min=0, max=LONGEST, help="With --group: age of metrics in seconds (30)."),
]
PodRollout = Annotated[
    Rollout | None,
    typer.Option(
        help="With --group: how pods get a new size (rolling). With on-delete, one pod per minute is deleted."
    ),
]
LargestPod = Annotated[
    float | None,
    typer.Option(min=0.001, max=1e6, help="With --group --rollout in-place: vCPUs above which resizes are refused."),
]
BrokenPods = Annotated[
    int | None,
    typer.Option(min=0, max=MOST_FAULTY, help="With --group: number of pods that never become ready (0)."),
]
FlappingPods = Annotated[
    int | None,
    typer.Option(min=0, max=MOST_FAULTY, help="With --group: number of pods that are ready every other 45 s (0)."),
]


def lags_of(options: Mapping[str, Any], *, is_group: bool) -> Lags:
    """Makes lags of the options of ``--group``; None selects the default.

    Raises ``ValueError`` for options without ``--group`` and invalid combinations.
    """
    chosen = {name: value for name, value in options.items() if value is not None}
    if chosen and not is_group:
        raise ValueError(f"--{next(iter(chosen)).replace('_', '-')}: needs --group")
    if "largest_pod" in chosen and chosen.get("rollout") is not Rollout.IN_PLACE:
        raise ValueError("--largest-pod: needs --rollout in-place")
    faulty = chosen.get("broken_pods", 0) + chosen.get("flapping_pods", 0)
    if faulty > MOST_FAULTY:
        raise ValueError(f"--broken-pods, --flapping-pods: expected at most {MOST_FAULTY} together, got {faulty}")
    # From vCPUs to thousandths.
    if "largest_pod" in chosen:
        chosen["largest_pod"] *= 1000
    return replace(DEFAULT_LAGS, deletes=DELETES, **{_LAGS[name]: value for name, value in chosen.items()})


def choose_group_players(names: Sequence[str]) -> dict[str, GroupPlayer]:
    """The named players, or all if ``names`` is empty. Raises ``ValueError``."""
    unknown = [name for name in names if name not in GROUP_PLAYERS]
    if unknown:
        raise ValueError(f"--policy: expected any of {', '.join(GROUP_PLAYERS)} with --group, got {unknown[0]}")
    return {name: GROUP_PLAYERS[name] for name in names} or dict(GROUP_PLAYERS)
