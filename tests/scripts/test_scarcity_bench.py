"""The rule that the quick start's fleet is judged by, and that fleet in virtual time (B.17)."""

from __future__ import annotations

from scripts.bench.scarcity_bench import DenialLog, NodeSample, VmSample, simulate


def node(denied: float, neighbour_used: float) -> NodeSample:
    """A VM that lacks something, beside one that holds ten vCPUs."""
    vms = [VmSample("db", 4.0, 4.0, denied), VmSample("idle", 10.0, neighbour_used, 0.0)]
    return NodeSample("node-1", 14.0, vms)


def test_wait_needs_idle_neighbours() -> None:
    """From second 10 to 50 the VM is denied; its neighbour is idle until 40. Then it is denied once more."""
    history = DenialLog()
    for at in range(0, 100, 10):
        history.add(
            float(at), [node(denied=1.0 if 10 <= at <= 50 or at == 80 else 0.0, neighbour_used=1 + at // 50 * 4)]
        )
    assert [(denial.since, denial.until) for denial in history.denials] == [(10.0, 50.0), (80.0, 80.0)]
    assert [(denial.since, denial.until) for denial in history.with_idle_neighbours] == [(10.0, 40.0)]
    assert history.violations == []


def test_long_wait_breaks_rule() -> None:
    history = DenialLog()
    for at in (0.0, 20.0, 31.0):
        history.add(at, [node(denied=1.0, neighbour_used=2.0)])
    assert [str(denial) for denial in history.violations] == [
        "0 s: db on node-1 was denied for 31 s; its neighbours hold 10.00 vCPU and use 2.00"
    ]


def test_quick_start_keeps_rule() -> None:
    assert [str(denial) for denial in simulate(5.0).violations] == []
