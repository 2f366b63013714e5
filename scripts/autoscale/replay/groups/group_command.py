"""``autoscale replay --group``: the table, the JSON document or the picture of a group's replay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from scripts.autoscale.outputs import OutputFiles, write_report
from scripts.autoscale.replay.groups.group_model import (
    DEFAULT_LAGS,
    REPLICAS,
    GroupPlayer,
    GroupReplay,
    GroupScore,
    group_totals,
    replay_groups,
)
from scripts.autoscale.replay.groups.group_policies import GROUP_PLAYERS
from scripts.autoscale.replay.groups.lagging_group import Lags, Rollout
from scripts.autoscale.replay.recording import Recording

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


_COLUMNS = ("cost", "insufficient %", "throttled %", "restarts/h", "replicas/h")


@dataclass(frozen=True, slots=True)
class Playing:
    """Settings of a replay: ``speed`` is how many times faster it is played, ``lags`` how far pods lag behind."""

    speed: float
    lags: Lags


def choose_group_players(names: Sequence[str]) -> dict[str, GroupPlayer]:
    """The players named, or all if none is. Raises ``ValueError``."""
    unknown = [name for name in names if name not in GROUP_PLAYERS]
    if unknown:
        raise ValueError(f"--policy: expected any of {', '.join(GROUP_PLAYERS)} with --group, got {unknown[0]}")
    return {name: GROUP_PLAYERS[name] for name in names} or dict(GROUP_PLAYERS)


def show_groups(
    recordings: Sequence[Recording],
    players: Mapping[str, GroupPlayer],
    playing: Playing,
    plot: Path | None,
    form: OutputFiles,
) -> None:
    """Plays the recordings as the load of a group, and prints and draws what became of it."""
    speed = playing.speed
    replays = replay_groups(recordings, players, speed, playing.lags)
    if plot is not None:
        from scripts.autoscale.replay.groups.group_plot import draw_groups  # noqa: PLC0415 - it takes a second

        draw_groups(replays, plot, speed)
    if form is not OutputFiles.TEXT:
        write_report(_document(replays, speed), form)
        return
    console = Console()
    for replay in replays:
        line = replay.timeline
        console.print(_table(f"{line.name}: {line.scored_hours:.1f} h scored every {line.step:g} s", replay.scores))
    if len(replays) > 1:
        console.print(_table(f"overall, {len(replays)} recordings at speed {speed:g}", group_totals(replays)))


def _document(replays: Sequence[GroupReplay], speed: float) -> bytes:
    recordings = [{"name": replay.timeline.name, "scores": replay.scores} for replay in replays]
    document = {"speed": speed, "recordings": recordings, "overall": group_totals(replays)}
    return msgspec.json.format(msgspec.json.encode(document), indent=2)


def _table(title: str, scores: Mapping[str, GroupScore]) -> Table:
    table = Table("policy", title=title, title_justify="left")
    for column in _COLUMNS:
        table.add_column(column, justify="right")
    for name, score in scores.items():
        figures = (score.cost, score.insufficient_percent, score.throttled_percent)
        rates = (score.restarts_per_hour, score.replicas_per_hour)
        table.add_row(name, *(f"{figure:.2f}" for figure in figures), *(f"{figure:.1f}" for figure in rates))
    return table
