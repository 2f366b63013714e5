"""The rule that the quick start's fleet is judged by, and that fleet in virtual time (B.17)."""

from __future__ import annotations

from scripts.bench.scarcity_bench import NodeSample, Scarcity, VmSample, play


def node(lacks: float, neighbour_uses: float) -> NodeSample:
    """A VM that lacks something, beside one that holds ten vCPUs."""
    vms = [VmSample("db", 4.0, 4.0, lacks), VmSample("idle", 10.0, neighbour_uses, 0.0)]
    return NodeSample("node-1", 14.0, vms)


def test_wait_needs_idle_neighbours() -> None:
    """From second 10 to 50 the VM is denied; its neighbour is idle until 40. Then it is denied once more."""
    history = Scarcity()
    for at in range(0, 100, 10):
        history.add(
            float(at), [node(lacks=1.0 if 10 <= at <= 50 or at == 80 else 0.0, neighbour_uses=1 + at // 50 * 4)]
        )
    assert [(wait.since, wait.until) for wait in history.denials] == [(10.0, 50.0), (80.0, 80.0)]
    assert [(wait.since, wait.until) for wait in history.waits] == [(10.0, 40.0)]
    assert history.violations == []


def test_long_wait_breaks_rule() -> None:
    history = Scarcity()
    for at in (0.0, 20.0, 31.0):
        history.add(at, [node(lacks=1.0, neighbour_uses=2.0)])
    assert [str(wait) for wait in history.violations] == [
        "0 s: db on node-1 was denied for 31 s; its neighbours hold 10.00 vCPU and use 2.00"
    ]


def test_quick_start_keeps_rule() -> None:
    assert [str(wait) for wait in play(5.0).violations] == []
