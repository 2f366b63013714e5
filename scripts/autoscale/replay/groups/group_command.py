"""The options of ``autoscale replay --group``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Final

import typer

from scripts.autoscale.replay.groups.group_model import DEFAULT_LAGS, GroupPlayer
from scripts.autoscale.replay.groups.group_policies import GROUP_PLAYERS
from scripts.autoscale.replay.groups.lagging_group import Lags, Rollout

LONGEST: Final = 3600
DELETES: Final = 60.0

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


def lags_of(start: float | None, metrics: float | None, rollout: Rollout | None, *, is_group: bool) -> Lags:
    """Makes lags of the options of ``--group``; None selects the default. Raises ``ValueError`` without ``--group``."""
    if not is_group and (start, metrics, rollout) != (None, None, None):
        raise ValueError("--pod-start, --metrics-age, --rollout: need --group")
    return replace(
        DEFAULT_LAGS,
        start=DEFAULT_LAGS.start if start is None else start,
        metrics=DEFAULT_LAGS.metrics if metrics is None else metrics,
        rollout=rollout or DEFAULT_LAGS.rollout,
        deletes=DELETES,
    )


def choose_group_players(names: Sequence[str]) -> dict[str, GroupPlayer]:
    """The named players, or all if ``names`` is empty. Raises ``ValueError``."""
    unknown = [name for name in names if name not in GROUP_PLAYERS]
    if unknown:
        raise ValueError(f"--policy: expected any of {', '.join(GROUP_PLAYERS)} with --group, got {unknown[0]}")
    return {name: GROUP_PLAYERS[name] for name in names} or dict(GROUP_PLAYERS)
