"""``make bench-fleet``: full fleets in ``autoscale simulate``, for several seeds, loads, speeds and fills."""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from itertools import product
from pathlib import Path
from typing import Annotated, Final

import typer

from scripts.autoscale.outputs import Recordings, bad_input_said
from scripts.autoscale.replay.recording import RecordingError, read_recordings
from scripts.autoscale.running import INTERRUPTED
from scripts.autoscale.simulate.figures import Figures
from scripts.autoscale.simulate.fleet import SimulationSettings, make_fleet
from scripts.autoscale.simulate.migration_model import LEAST_COST
from scripts.autoscale.simulate.run import Run
from scripts.bench.fleet_table import FAST, HOURS, OWN_SPEED, BenchRow, FleetCase, header

NODES: Final = 20
VMS: Final = 300
GENERATED: Final = "generated"
RECORDED: Final = "recorded"


def bench_fleet(  # noqa: PLR0913 - typer makes an option of every parameter
    trace: Recordings = None,
    seed: Annotated[list[int] | None, typer.Option(help="Only these seeds. Default: 1, 2 and 3.")] = None,
    fill: Annotated[list[float] | None, typer.Option(help="Only these fills. Default: 0.7, 0.8, 0.9 and 1.0.")] = None,
    speed: Annotated[list[float] | None, typer.Option(help="Only these speeds, of 1 and 20. Default: both.")] = None,
    part: Annotated[float, typer.Option(min=0.01, max=1, help="The share of 12 h (x20: 3 h) to play.")] = 1.0,
    *,
    generated: Annotated[bool, typer.Option(help="Play generated loads, too.")] = True,
) -> None:
    """Measure how fleets of 20 nodes and 300 VMs fare that are nearly full, beside the aims.

    Plays our generated loads, and the recordings of --trace if any are given, at their own speed for 12 hours and 20
    times as fast for 3. Each row is printed when its seeds are played; nothing is kept of a run that is interrupted.
    All of it takes about half an hour on two idle cores, twice that with recordings; --seed 1 takes a third.
    Exits 1 if a fleet was ever over-committed.
    """
    with bad_input_said("bench-fleet", RecordingError):
        # Before the first minutes are spent.
        if trace:
            read_recordings(trace)
    loads = [*([GENERATED] if generated else []), *([RECORDED] if trace else [])]
    speeds = [pace for pace in (OWN_SPEED, FAST) if pace in (speed or HOURS)]
    cases = [FleetCase(*case) for case in product(loads, speeds, fill or [0.7, 0.8, 0.9, 1.0])]
    raise typer.Exit(_bench(cases, seed or [1, 2, 3], tuple(trace or ()), part))


def _bench(cases: Sequence[FleetCase], seeds: Sequence[int], traces: tuple[Path, ...], part: float) -> int:
    print(header(), flush=True)
    rows: list[BenchRow] = []
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        runs = {
            pool.submit(_play, _settings(case, seed, traces, part)): (case, seed) for case in cases for seed in seeds
        }
        try:
            for row in _rows(runs, len(seeds), part):
                print(row, flush=True)
                rows.append(row)
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            return INTERRUPTED
    missed = [text for row in rows for text in row.missed()]
    print(f"Aims met: {sum(len(row.met()) for row in rows)}; missed: {len(missed)}", *missed, sep="\n  ")
    return int(any(run.violations for row in rows for run in row.runs))


def _rows(runs: dict[Future[Figures], tuple[FleetCase, int]], seeds: int, part: float) -> Iterator[BenchRow]:
    """Each case as soon as all of its seeds are played."""
    began, played = time.monotonic(), dict[FleetCase, list[Figures]]()
    for number, future in enumerate(as_completed(runs), start=1):
        case, seed = runs[future]
        of_case = played.setdefault(case, [])
        of_case.append(future.result())
        minutes = (time.monotonic() - began) / 60
        print(f"{number} of {len(runs)} after {minutes:.0f} min: {case}, seed {seed}", file=sys.stderr)
        if len(of_case) == seeds:
            yield BenchRow(case, of_case, part)


def _settings(case: FleetCase, seed: int, traces: tuple[Path, ...], part: float) -> SimulationSettings:
    traces = traces if case.loads == RECORDED else ()
    hours = HOURS[case.speed] * part
    return SimulationSettings(
        nodes=NODES, vms=VMS, hours=hours, seed=seed, traces=traces, speed=case.speed, fill=case.fill
    )


def _play(settings: SimulationSettings) -> Figures:
    """Plays one fleet; runs in a process of its own."""
    run = Run(make_fleet(settings), LEAST_COST)
    # The fleet will not become garbage before the end, so collections need not walk through it.
    gc.freeze()
    for _ in run.play():
        pass
    return run.figures(time.process_time())


if __name__ == "__main__":
    typer.run(bench_fleet)
