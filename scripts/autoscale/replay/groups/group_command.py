"""``autoscale replay --group``: the table, the JSON document or the picture of a group's replay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from scripts.autoscale.outputs import Report, write_report
from scripts.autoscale.replay.groups.group_model import GroupPlayer
from scripts.autoscale.replay.groups.group_policies import GROUP_PLAYERS
from scripts.autoscale.replay.groups.group_score import GroupReplay, GroupScore, group_totals, replay_groups
from scripts.autoscale.replay.recording import Recording

_COLUMNS = ("cost", "insufficient %", "throttled %", "restarts/h", "replicas/h")


def choose_group_players(names: Sequence[str]) -> dict[str, GroupPlayer]:
    """The players named, or all where none is. Raises ``ValueError``."""
    unknown = [name for name in names if name not in GROUP_PLAYERS]
    if unknown:
        raise ValueError(f"--policy: expected any of {', '.join(GROUP_PLAYERS)} with --group, got {unknown[0]}")
    return {name: GROUP_PLAYERS[name] for name in names} or dict(GROUP_PLAYERS)


def show_groups(
    recordings: Sequence[Recording], players: Mapping[str, GroupPlayer], speed: float, plot: Path | None, form: Report
) -> None:
    """Plays the recordings as the load of a group, and prints and draws what became of it."""
    replays = replay_groups(recordings, players, speed)
    if plot is not None:
        from scripts.autoscale.replay.groups.group_plot import draw_groups  # noqa: PLC0415 - it takes a second

        draw_groups(replays, plot, speed)
    if form is not Report.TEXT:
        write_report(_document(replays, speed), form)
        return
    console = Console()
    for each in replays:
        line = each.timeline
        console.print(_table(f"{line.name}: {line.scored_hours:.1f} h scored every {line.step:g} s", each.scores))
    if len(replays) > 1:
        console.print(_table(f"overall, {len(replays)} recordings at speed {speed:g}", group_totals(replays)))


def _document(replays: Sequence[GroupReplay], speed: float) -> bytes:
    recordings = [{"name": each.timeline.name, "scores": each.scores} for each in replays]
    document = {"speed": speed, "recordings": recordings, "overall": group_totals(replays)}
    return msgspec.json.format(msgspec.json.encode(document), indent=2)


def _table(title: str, scores: Mapping[str, GroupScore]) -> Table:
    table = Table("policy", title=title, title_justify="left")
    for column in _COLUMNS:
        table.add_column(column, justify="right")
    for name, score in scores.items():
        figures = (score.cost, score.insufficient_percent, score.throttled_percent)
        rates = (score.restarts_per_hour, score.replicas_per_hour)
        table.add_row(name, *(f"{each:.2f}" for each in figures), *(f"{each:.1f}" for each in rates))
    return table
