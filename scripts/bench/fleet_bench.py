"""``make bench-fleet``: simulates nearly full fleets with several seeds, loads, speeds and fill levels."""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Annotated, Final

import typer

from deploy.neonvm.simulated.recording_rows import RecordingError
from scripts.autoscale.outputs import Recordings, reporting_bad_input
from scripts.autoscale.replay.recording import read_recordings
from scripts.autoscale.running import INTERRUPTED
from scripts.autoscale.simulate.fleet import SimulationSettings, make_fleet
from scripts.autoscale.simulate.migration_model import LEAST_COST
from scripts.autoscale.simulate.run import Run
from scripts.autoscale.simulate.run_statistics import Figures

OWN_SPEED: Final = 1.0
FAST: Final = 20.0
"""Replays a recorded day in 72 minutes."""

HOURS: Final = {OWN_SPEED: 12.0, FAST: 3.0}
"""Simulated hours by speed."""


@dataclass(frozen=True, slots=True)
class FleetCase:
    """One row of the table: the load, the replay speed (1 or 20), and the nodes' fill level at peak load (0 to 1)."""

    loads: str
    speed: float
    fill: float

    def __str__(self) -> str:
        return f"{self.loads}, {self.pace}, fill {self.fill:g}"

    @property
    def pace(self) -> str:
        """The speed as shown in the table."""
        return "own speed" if self.speed == OWN_SPEED else f"x{self.speed:g}"


_DENIED: Final = "denied vCPU-h"
TARGETS: Final[Mapping[tuple[float, float], Mapping[str, float]]] = {
    (OWN_SPEED, 0.7): {"in place, %": 99.98},
    (OWN_SPEED, 0.8): {"in place, %": 99.8},
    (OWN_SPEED, 0.9): {"moves an hour": 15, _DENIED: 2.5, "without CPU, %": 0.01, "longest denial, s": 300},
    (FAST, 0.7): {"moves an hour": 30, _DENIED: 0.4, "without CPU, %": 0.01, "longest denial, s": 60},
    (FAST, 0.9): {"moves an hour": 60, _DENIED: 20, "without CPU, %": 0.45, "longest denial, s": 180},
}
"""Targets by speed and fill: upper limits, except for ``in place``. ``_DENIED`` is for all ``HOURS``."""


@dataclass(frozen=True, slots=True)
class BenchColumn:
    """A column: its value over all seeds, and its number format. ``at_least``: the target is a lower limit."""

    heading: str
    of: Callable[[Sequence[Figures]], float]
    form: str
    at_least: bool = False

    def is_met(self, value: float, target: float) -> bool:
        """Return True if ``value`` meets ``target``."""
        return value >= target if self.at_least else value <= target

    def cell(self, value: float, target: float | None) -> str:
        """The value and its target, such as ``24 > 15`` (missed) or ``8 <= 15`` (met)."""
        if target is None:
            return format(value, self.form)
        signs = ("<", ">=") if self.at_least else (">", "<=")
        return f"{value:{self.form}} {signs[self.is_met(value, target)]} {target:g}"


def _mean(of: Callable[[Figures], float]) -> Callable[[Sequence[Figures]], float]:
    return lambda runs: fmean(map(of, runs))


COLUMNS: Final = (
    BenchColumn("moves an hour", _mean(lambda run: run.migrations_per_hour), ".1f"),
    BenchColumn(_DENIED, _mean(lambda run: run.denied_vcpu_hours), ".2f"),
    BenchColumn("without CPU, %", _mean(lambda run: run.short_percent), ".4f"),
    BenchColumn("longest denial, s", lambda runs: max(run.longest_denial_seconds for run in runs), ".0f"),
    BenchColumn("in place, %", _mean(lambda run: run.in_place_percent), ".3f", at_least=True),
    BenchColumn("unfair, %", _mean(lambda run: run.unfairness_percent), ".1f"),
    BenchColumn("regrown, %", _mean(lambda run: run.regrown_percent), ".1f"),
)
"""Means over the seeds; of the longest denial, the maximum."""

_WIDTHS: Final = (10, 9, 4, 15, 14, 16, 17, 15, 9, 10)


def header() -> str:
    """The table's header line."""
    return _line(["loads", "speed", "fill", *(column.heading for column in COLUMNS)])


@dataclass(frozen=True, slots=True)
class BenchRow:
    """A case and the figures of its seeds. Each seed simulated the fraction ``part`` (0 to 1) of the case's hours."""

    case: FleetCase
    runs: Sequence[Figures]
    part: float = 1.0

    def __str__(self) -> str:
        cells = (column.cell(value, target) for column, value, target in self._values())
        return _line([self.case.loads, self.case.pace, f"{self.case.fill:g}", *cells])

    def met(self) -> list[str]:
        """The met targets, as text."""
        return [text for is_met, text in self._targets() if is_met]

    def missed(self) -> list[str]:
        """The missed targets, as text."""
        return [text for is_met, text in self._targets() if not is_met]

    def _targets(self) -> Iterator[tuple[bool, str]]:
        for column, value, target in self._values():
            if target is not None:
                yield column.is_met(value, target), f"{self.case}: {column.heading} {column.cell(value, target)}"

    def _values(self) -> Iterator[tuple[BenchColumn, float, float | None]]:
        targets = TARGETS.get((self.case.speed, self.case.fill), {})
        for column in COLUMNS:
            target = targets.get(column.heading)
            # The only target that is a sum over time.
            if target is not None and column.heading == _DENIED:
                target *= self.part
            yield column, column.of(self.runs), target


def _line(cells: Sequence[str]) -> str:
    texts, numbers = cells[:2], cells[2:]
    padded = [text.ljust(width) for text, width in zip(texts, _WIDTHS, strict=False)]
    padded += [number.rjust(width) for number, width in zip(numbers, _WIDTHS[2:], strict=True)]
    return "  ".join(padded)


NODES: Final = 20
VMS: Final = 300
GENERATED: Final = "generated"
RECORDED: Final = "recorded"


def bench_fleet(  # noqa: PLR0913 - typer makes an option of every parameter
    trace: Recordings = None,
    seed: Annotated[list[int] | None, typer.Option(help="Only these seeds. Default: 1, 2 and 3.")] = None,
    fill: Annotated[list[float] | None, typer.Option(help="Only these fills. Default: 0.7, 0.8, 0.9 and 1.0.")] = None,
    speed: Annotated[list[float] | None, typer.Option(help="Only these speeds, of 1 and 20. Default: both.")] = None,
    part: Annotated[float, typer.Option(min=0.01, max=1, help="Fraction of 12 h (x20: 3 h) to simulate.")] = 1.0,
    *,
    generated: Annotated[bool, typer.Option(help="Include generated loads.")] = True,
) -> None:
    """Simulate nearly full fleets of 20 nodes and 300 VMs, and compare the figures with targets.

    Uses generated loads, and the recordings of --trace if given, at their own speed for 12 hours and 20 times as fast
    for 3 hours. Prints each row when all its seeds are done. Takes half an hour on two idle cores, an hour with
    recordings, ten minutes with --seed 1. Exits with 1 if a node was overcommitted.
    """
    with reporting_bad_input("bench-fleet", RecordingError):
        # Before the simulations: they take minutes.
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
            pool.submit(_simulate, _settings(case, seed, traces, part)): (case, seed)
            for case in cases
            for seed in seeds
        }
        try:
            for row in _rows(runs, len(seeds), part):
                print(row, flush=True)
                rows.append(row)
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            return INTERRUPTED
    missed = [text for row in rows for text in row.missed()]
    print(f"Targets met: {sum(len(row.met()) for row in rows)}; missed: {len(missed)}", *missed, sep="\n  ")
    return int(any(run.violations for row in rows for run in row.runs))


def _rows(runs: dict[Future[Figures], tuple[FleetCase, int]], seeds: int, part: float) -> Iterator[BenchRow]:
    """Yield each row when all its seeds are done."""
    began, figures_by_case = time.monotonic(), dict[FleetCase, list[Figures]]()
    for number, future in enumerate(as_completed(runs), start=1):
        case, seed = runs[future]
        case_runs = figures_by_case.setdefault(case, [])
        case_runs.append(future.result())
        minutes = (time.monotonic() - began) / 60
        print(f"{number} of {len(runs)} after {minutes:.0f} min: {case}, seed {seed}", file=sys.stderr)
        if len(case_runs) == seeds:
            yield BenchRow(case, case_runs, part)


def _settings(case: FleetCase, seed: int, traces: tuple[Path, ...], part: float) -> SimulationSettings:
    traces = traces if case.loads == RECORDED else ()
    hours = HOURS[case.speed] * part
    return SimulationSettings(
        nodes=NODES, vms=VMS, hours=hours, seed=seed, traces=traces, speed=case.speed, fill=case.fill
    )


def _simulate(settings: SimulationSettings) -> Figures:
    """Simulate one fleet in a worker process."""
    run = Run(make_fleet(settings), LEAST_COST)
    # The fleet lives until the end: exclude it from garbage collection.
    gc.freeze()
    for _ in run.execute():
        pass
    return run.figures(time.process_time())


if __name__ == "__main__":
    typer.run(bench_fleet)
