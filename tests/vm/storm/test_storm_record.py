"""A storm of sleeps: its seed, and its verdict on clients, rows and nodes."""

from itertools import islice

from tests.vm.storm.storm_record import StormAction, StormRecord, overbooked, steps, storm_counts


def test_seed_decides_every_step() -> None:
    storm = list(islice(steps("7 storm-1"), 500))
    assert storm == list(islice(steps("7 storm-1"), 500))
    assert storm != list(islice(steps("7 storm-2"), 500))
    assert {step.action for step in storm} == set(StormAction)
    assert {step.quiet for step in storm} == {True, False}


def test_only_kill_excuses_failure() -> None:
    """A session that was open before the kill, and one that begins while the VM is down, may fail; no other may."""
    record = StormRecord("storm-1")
    record.failed("before", record.kills)
    record.killed()
    record.failed("open since before the kill", 0)
    record.failed("new while it is down", record.kills - record.is_down)
    # Its opening began before the kill, so it proves nothing.
    record.opened(0)
    assert record.is_down
    record.opened(1)
    record.failed("new after that", record.kills - record.is_down)
    assert (record.excused, record.faults) == (2, ["before", "new after that"])


def test_rows_exist_exactly_once() -> None:
    record = StormRecord("storm-1", rows=5, confirmed={1, 2, 3})
    record.judge_rows({1: 1, 2: 1, 3: 1, 5: 1})
    assert record.faults == []
    record.judge_rows({1: 1, 2: 2, 6: 1})
    assert record.faults == [
        "1 confirmed rows are lost, such as 3",
        "1 rows are duplicated, such as 2",
        "1 rows were never sent, such as 6",
    ]


def test_node_over_its_total_is_named() -> None:
    def node(name: str, total: str, *, known: bool = True) -> dict[str, object]:
        reserved = {"cpu": "2001m", "mem": "1Gi"}
        return {"name": name, "known": known, "total": {"cpu": total, "mem": "1Gi"}, "reserved": reserved}

    nodes = [node("node-1", "2"), node("node-2", "2001m"), node("node-3", "0", known=False)]
    assert overbooked({"nodes": nodes}) == {"node-1 reserves 2001m cpu, 1Gi of 2 cpu, 1Gi"}


def test_counts_have_a_line_for_each_action() -> None:
    ends = [(StormAction.MIGRATION, 1.5, True), (StormAction.MIGRATION, 2.25, False)]
    lines = storm_counts([StormRecord("storm-1", confirmed={1, 2}, kills=1, excused=4, ends=ends)])
    assert f"{'migration':32}     2      1    2.2 s" in lines
    assert lines[-1] == "storm-1: 2 rows, 4 failures for 1 kills"
