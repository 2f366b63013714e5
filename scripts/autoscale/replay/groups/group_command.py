"""``autoscale replay --group``: the options that only a group has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import inf
from typing import Annotated, Final

import typer

from scripts.autoscale.replay.groups.group_model import (
    DEFAULT_LAGS,
    REPLICAS,
    GroupPlayer,
)
from scripts.autoscale.replay.groups.group_policies import GROUP_PLAYERS
from scripts.autoscale.replay.groups.lagging_group import Lags, Rollout

LONGEST: Final = 3600
DELETES: Final = 60.0
MOST_FAULTY: Final = REPLICAS.min - 1
"""One pod of the fewest that there may be always serves."""

PodStart = Annotated[
    float | None,
    typer.Option(min=0, max=LONGEST, help="With --group: seconds until a new pod is ready (90).", show_default=False),
]
MetricsAge = Annotated[
    float | None,
    typer.Option(min=0, max=LONGEST, help="With --group: how many seconds old metrics are (30).", show_default=False),
]
PodRollout = Annotated[
    Rollout | None,
    typer.Option(
        help="With --group: how a new size reaches pods (rolling). With on-delete one pod is deleted every minute.",
        show_default=False,
    ),
]
LargestPod = Annotated[
    float | None,
    typer.Option(
        min=0.001,
        max=1e6,
        help="With --group --rollout in-place: vCPUs beyond which a resize is refused.",
        show_default=False,
    ),
]
BrokenPods = Annotated[
    int | None,
    typer.Option(min=0, max=MOST_FAULTY, help="With --group: pods that never become ready (0).", show_default=False),
]
FlappingPods = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=MOST_FAULTY,
        help="With --group: pods that are ready every other 45 s (0).",
        show_default=False,
    ),
]


@dataclass(frozen=True, slots=True)
class LagOptions:
    """The options that only a group has, as they were given; None: the default."""

    pod_start: float | None = None
    metrics_age: float | None = None
    rollout: Rollout | None = None
    largest_pod: float | None = None
    broken_pods: int | None = None
    flapping_pods: int | None = None

    def lags(self, *, is_group: bool) -> Lags:
        """The lags to play. Raises ``ValueError`` for options that mean nothing, alone or together."""
        options = [name for name, value in asdict(self).items() if value is not None]
        if options and not is_group:
            raise ValueError(f"--{options[0].replace('_', '-')}: expected --group beside it")
        if self.largest_pod is not None and self.rollout is not Rollout.IN_PLACE:
            raise ValueError("--largest-pod: expected --rollout in-place beside it")
        faulty = (self.broken_pods or 0) + (self.flapping_pods or 0)
        if faulty > MOST_FAULTY:
            raise ValueError(f"--broken-pods, --flapping-pods: expected at most {MOST_FAULTY} together, got {faulty}")
        # Only None means the default: 0 seconds is an answer.
        return Lags(
            start=DEFAULT_LAGS.start if self.pod_start is None else self.pod_start,
            metrics=DEFAULT_LAGS.metrics if self.metrics_age is None else self.metrics_age,
            rollout=self.rollout or DEFAULT_LAGS.rollout,
            deletes=DELETES,
            # The command takes vCPUs, the model thousandths.
            largest=inf if self.largest_pod is None else self.largest_pod * 1000,
            broken=self.broken_pods or 0,
            flapping=self.flapping_pods or 0,
        )


def choose_group_players(names: Sequence[str]) -> dict[str, GroupPlayer]:
    """The players named, or all if none is. Raises ``ValueError``."""
    unknown = [name for name in names if name not in GROUP_PLAYERS]
    if unknown:
        raise ValueError(f"--policy: expected any of {', '.join(GROUP_PLAYERS)} with --group, got {unknown[0]}")
    return {name: GROUP_PLAYERS[name] for name in names} or dict(GROUP_PLAYERS)
