"""The figures of many migrations: medians and maxima, and what is not clean."""

from rich.console import Console

from protocol.messages import ObjectName
from protocol.units import Instant, Seconds
from scripts.autoscale.demonstration.moves import ObservedMove
from scripts.autoscale.demonstration.pgbench import Outcome
from scripts.autoscale.demonstration.vm_clients import ClientReport, ProbeReply
from scripts.bench.echoes import Echoes
from scripts.bench.migration_bench import MigrationFigures, table

VM = ObjectName("default", "db")


def probe_report(*answers: tuple[float, float], failed: int = 0) -> ClientReport:
    return ClientReport(
        Outcome(len(answers), failed, ""), [ProbeReply(Instant(at), Seconds(waited)) for at, waited in answers]
    )


def moved(at: float, total: int, downtime: int) -> ObservedMove:
    return ObservedMove(VM, "n1", "n2", "Succeeded", "", "", total, downtime, Instant(at), Instant(at + 1.0))


MOVES = [moved(20.0, 900, 30), moved(30.0, 1200, 50), moved(40.0, 1000, 40)]
NOTHING = Echoes()
LOAD = Outcome(5000, 0, "")
MOVING = probe_report((15.0, 3.0), (20.5, 0.15), (30.5, 0.25), (40.5, 0.2))


def lines(figures: MigrationFigures) -> list[str]:
    """The table's lines, without frames and padding."""
    console = Console(width=120, record=True)
    console.print(table(figures))
    return [" ".join(line.replace("│", " ").split()) for line in console.export_text().splitlines()]


def test_every_stall_belongs_to_the_migration_beside_it() -> None:
    found = MigrationFigures(MOVES, MOVING, NOTHING, LOAD)
    assert found.is_clean
    said = lines(found)
    for expected in (
        "3 of 3 migrations succeeded",
        "total 1000 1200",
        "downtime 40 50",
        "longest stall of a client 200 250",
        "longest wait for an echo - -",
        "5000 transactions, 0 failed",
        "0 echoes lost in 0 migrations",
    ):
        assert expected in said


def test_failed_migrations_and_connections_are_counted() -> None:
    failed = ObservedMove(VM, "n1", "n2", "Failed", "the destination died", ended=Instant(51.0))
    found = MigrationFigures([*MOVES, failed], probe_report((20.5, 0.15), failed=1), NOTHING, Outcome(5000, 2, ""))
    assert not found.is_clean
    said = lines(found)
    for expected in (
        "3 of 4 migrations succeeded",
        "5000 transactions, 3 failed",
        "not migrated: the destination died",
        "total 1000 1200",
    ):
        assert expected in said


def test_late_echo_counts_as_lost() -> None:
    sent = [Instant(at) for at in (10.0, 20.1, 20.2, 30.5, 30.6, 40.5)]
    answers = {0: 10.01, 1: 20.3, 2: 20.31, 3: 31.6, 5: 40.55}
    echoes = Echoes(sent, {number: Instant(at) for number, at in answers.items()})
    said = lines(MigrationFigures(MOVES, MOVING, echoes, LOAD))
    assert "2 echoes lost in 1 migrations" in said
    assert "longest wait for an echo 125 200" in said


def test_no_migration_is_no_success() -> None:
    found = MigrationFigures([], probe_report(), NOTHING, Outcome(0, 0, ""))
    assert not found.is_clean
    assert "total - -" in lines(found)


def test_migrations_that_no_client_lived_through_prove_nothing() -> None:
    assert not MigrationFigures(MOVES, probe_report(), NOTHING, LOAD).is_clean
    assert not MigrationFigures(MOVES, MOVING, NOTHING, Outcome(0, 0, "")).is_clean
