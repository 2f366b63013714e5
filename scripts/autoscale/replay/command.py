"""``autoscale replay``: reads options and prints tables. ``play`` does the work."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.status import Status
from rich.table import Table

from deploy.neonvm.simulated.recording_rows import RecordingError
from scripts.autoscale.outputs import (
    JsonFlag,
    OutputFiles,
    Recordings,
    ReportForm,
    SleepAfter,
    Speed,
    check_folder,
    check_picture_path,
    parse_sleep_after,
    reporting_bad_input,
    write_report,
)
from scripts.autoscale.replay.generate import SHAPES, generate
from scripts.autoscale.replay.groups.group_command import (
    AsGroup,
    BrokenPods,
    FlappingPods,
    LargestPod,
    MetricsAge,
    PodRollout,
    PodStart,
    choose_group_players,
    lags_of,
)
from scripts.autoscale.replay.groups.group_model import replay_groups
from scripts.autoscale.replay.peers import PLAYERS, Player
from scripts.autoscale.replay.play import ReplayResult, S, as_json, choose_players, play, totals
from scripts.autoscale.replay.recording import (
    UNIT,
    Announce,
    Floats,
    Recording,
    Timeline,
    files_of,
    read_recordings,
    write_recording,
)
from scripts.autoscale.replay.sleep_savings import RecordedSleep, savings
from scripts.autoscale.replay.working_sets import SCENARIOS, ScenarioOutcome, played_scenarios
from scripts.autoscale.terminal.printing import print_table
from scripts.autoscale.terminal.visible import visible

_COLUMNS = ("cost / oracle", "insufficient %", "throttled %", "actions / h")
_OF_GROUPS = ("cost", "insufficient %", "throttled %", "restarts/h", "replicas/h")


Policies = Annotated[
    list[str] | None,
    typer.Option(help=f"Policy files, or any of {', '.join(PLAYERS)}. Default: all of these."),
]
Picture = Annotated[
    Path | None,
    typer.Option(callback=check_picture_path, help="Draw a panel per recording into this file (PNG, SVG or PDF)."),
]
WorkingSet = Annotated[
    str,
    typer.Option(
        help="Replay working sets in the page cache of a simulated guest instead: all, or one of "
        f"{', '.join(SCENARIOS)}."
    ),
]
SaveFolder = Annotated[
    Path | None, typer.Option(callback=check_folder, help="Also write the recordings to this folder.")
]


def replay(  # noqa: PLR0913, PLR0917 - typer makes an option of every parameter
    trace: Recordings = None,
    policy: Policies = None,
    speed: Speed = 1.0,
    output: ReportForm = "text",
    as_json_: JsonFlag = False,
    plot: Picture = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of generated recordings.")] = 1,
    working_set: WorkingSet = "",
    group: AsGroup = False,
    pod_start: PodStart = None,
    metrics_age: MetricsAge = None,
    rollout: PodRollout = None,
    largest_pod: LargestPod = None,
    broken_pods: BrokenPods = None,
    flapping_pods: FlappingPods = None,
    sleep: SleepAfter = "0",
    save: SaveFolder = None,
) -> None:
    """Replay recorded workloads with several scaling policies, and compare their cost and missed demand."""
    form = "json" if as_json_ else output
    lag_options = {"pod_start": pod_start, "metrics_age": metrics_age, "rollout": rollout, "largest_pod": largest_pod}
    lag_options |= {"broken_pods": broken_pods, "flapping_pods": flapping_pods}
    with reporting_bad_input("autoscale replay", ValueError), progress() as status:
        announce = partial(_announce, status)
        # Check combinations of options before reading or generating anything.
        lags, after = lags_of(lag_options, is_group=group), parse_sleep_after(sleep)
        if after and (group or working_set):
            raise typer.BadParameter("cannot be combined with --group or --working-set", param_hint="--sleep")
        show: Callable[[OutputFiles], None]
        if working_set:
            show = partial(_print_working_sets, played_scenarios(working_set))
        else:
            groups = choose_group_players(policy or []) if group else {}
            players = {} if group else choose_players(policy or [])
            recordings = read_recordings(trace or [], announce) or [generate(shape, seed) for shape in SHAPES]
            if save is not None:
                _save(recordings, save, files_of(trace or []))
            if group:
                show = partial(
                    _show, replay_groups(announced(recordings, announce), groups, speed, lags), _OF_GROUPS, speed, plot
                )
            else:
                results = play(recordings, announced_players(players, announce), speed)
                sleeps = savings(results, after) if after else []
                show = partial(_show, results, _COLUMNS, speed, plot, sleeps=sleeps)
    # A ValueError of a table or picture is a bug, not bad input.
    with reporting_bad_input("autoscale replay"):
        show(form)


def progress() -> Status:
    """A transient progress line on a terminal."""
    # stdout is for the tables or the JSON document.
    return Console(stderr=True).status("replaying")


def _announce(status: Status, text: str) -> None:
    status.update(escape(visible(text)))


def announced(recordings: Sequence[Recording], announce: Announce) -> Iterator[Recording]:
    """Yields the recordings, and announces the current one."""
    for number, recording in enumerate(recordings, 1):
        announce(f"replaying {recording.name} ({number} of {len(recordings)})")
        yield recording


def announced_players(players: Mapping[str, Player], announce: Announce) -> dict[str, Player]:
    """The same players, which announce what they play: with millions of steps, each takes minutes."""

    def played(name: str, player: Player, line: Timeline) -> Floats:
        announce(f"replaying {line.name} with {name}")
        return player(line)

    return {name: partial(played, name, player) for name, player in players.items()}


def _print_working_sets(outcomes: Sequence[ScenarioOutcome], form: OutputFiles) -> None:
    if form != "text":
        write_report(msgspec.json.format(msgspec.json.encode(outcomes)), form)
        return
    columns = ("needed", "settled at", "resizes", "most per settled hour", "served %")
    table = _empty_table("working set", "memory in GiB; settled after two hours", columns)
    for outcome in outcomes:
        figures = (
            f"{outcome.needed:.2f}",
            f"{outcome.settled_at:.2f}",
            f"{outcome.resizes}",
            f"{outcome.busiest_settled_hour}",
        )
        table.add_row(outcome.name, *figures, f"{100 * outcome.served:.1f}")
    console = Console()
    print_table(console, table)
    for outcome in outcomes:
        console.print(f"{outcome.name}: it {'; it '.join(outcome.explanation)}.", highlight=False)


def _save(recordings: Sequence[Recording], folder: Path, sources: Sequence[Path]) -> None:
    """Writes each recording to a file of its name; duplicate names get a number. Raises ``RecordingError``."""
    folder.mkdir(parents=True, exist_ok=True)
    files: dict[Path, Recording] = {}
    for recording in recordings:
        numbered = (f"{recording.name}-{number}" for number in count(2))
        names = (folder / f"{name}.csv" for name in chain([recording.name], numbered))
        files[next(path for path in names if path not in files)] = recording
    # Some columns of a source are not read, and would be lost.
    for path in files:
        if path.exists() and any(path.samefile(source) for source in sources):
            reason = "--save would replace this recording, which is replayed: use another folder"
            raise RecordingError(f"{path}: {reason}")
    for path, recording in files.items():
        write_recording(recording, path)


def _show(  # noqa: PLR0913 - the results and where to print them
    results: Sequence[ReplayResult[S]],
    columns: Sequence[str],
    speed: float,
    plot: Path | None,
    form: OutputFiles,
    *,
    sleeps: Sequence[RecordedSleep] = (),
) -> None:
    if plot is not None:
        from scripts.autoscale.replay.plot import draw  # noqa: PLC0415 - matplotlib takes a second to import

        draw(results, plot, speed)
    if form != "text":
        write_report(as_json(results, speed, sleeps), form)
        return
    console = Console()
    for one in results:
        title = f"{one.timeline.name}: {one.timeline.scored_hours:.1f} h scored every {one.timeline.step:g} s"
        print_table(console, _table(title, columns, one.scores))
    # A total of one recording would repeat its table.
    if len(results) > 1:
        title = f"overall, {len(results)} recordings at speed {speed:g}"
        print_table(console, _table(title, columns, totals(results)))
    if sleeps:
        _print_sleep(console, sleeps)


def _print_sleep(console: Console, sleeps: Sequence[RecordedSleep]) -> None:
    """Prints an upper bound of what sleep would save: a recording does not show whether a small load is a client's."""
    for one in sleeps:
        share = 100 * one.asleep / one.hours
        line = f"{one.recording}: asleep for {share:.1f} % of {one.hours:.1f} h, slept {one.sleeps} times"
        console.print(line, highlight=False, soft_wrap=True)
    title = f"sleep saves at most (idle: below {UNIT:g} vCPU)"
    table = _empty_table("policy", title, ("vCPU-h", "saved vCPU-h", "saved %"))
    for name in sleeps[0].reserved:
        reserved = sum(one.reserved[name] for one in sleeps)
        saved = sum(one.saved[name] for one in sleeps)
        table.add_row(name, f"{reserved:.1f}", f"{saved:.1f}", f"{100 * saved / reserved:.1f}")
    print_table(console, table)


def _table(title: str, columns: Sequence[str], scores: Mapping[str, S]) -> Table:
    table = _empty_table("policy", title, columns)
    for name, score in scores.items():
        parts = msgspec.structs.astuple(score)
        # Cost and percentages first, then rates per hour.
        table.add_row(name, *(f"{part:.2f}" for part in parts[:3]), *(f"{rate:.1f}" for rate in parts[3:]))
    return table


def _empty_table(of: str, title: str, columns: Sequence[str]) -> Table:
    """A table of numbers: a column of names, ``of`` what, and right-aligned ``columns``."""
    table = Table(of, title=title, title_justify="left")
    for column in columns:
        table.add_column(column, justify="right")
    return table
