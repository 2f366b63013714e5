"""The target of a guest with repeated samples and gaps, and its maximum recent need."""

from __future__ import annotations

from math import ceil

from hypothesis import given
from hypothesis import strategies as st

from agent.core.policy import Smoothing
from agent.core.stabilizer import RECENT, Stabilizer
from protocol.smoothing.policy import parse_policy
from protocol.smoothing.stage import Sample
from protocol.units import Bytes, Instant, MilliCpu, Resources, Seconds

POLICIES = (
    Smoothing(),
    Smoothing(max_gap=Seconds(40.0)),
    Smoothing(
        parse_policy(
            [{"sustain": {"over": 3}}, {"hold": {"window": 20, "pause": 30}}, {"quantize": {"step": "300m"}}], "cpu"
        ),
        parse_policy([{"hold": {"window": 25}}, {"hysteresis": {"ratio": 0.3, "patience": 60}}], "memory"),
    ),
    Smoothing(parse_policy([{"percentile": {}}], "cpu"), parse_policy([{"histogram": {}}], "memory")),
)
sizes = st.sampled_from([Resources.parse(cpu, mem) for cpu, mem in (("100m", "1Gi"), ("900m", "1Gi"), (3, "7Gi"))])
looks = st.tuples(st.sampled_from([0.5, 1.0, 15.0, 60.0]), st.none() | sizes, sizes, st.integers(1, 30))


class EveryLook:
    """The same computed by the pipelines alone, from every sample."""

    def __init__(self, smoothing: Smoothing) -> None:
        self.smoothing = smoothing
        self.target: Resources | None = None
        self.looks: list[tuple[float, Resources]] = []

    def observe(self, need: Resources | None, has: Resources, now: float) -> None:
        self.target = None
        if need is None:
            return
        if not self.looks or now - self.looks[-1][0] > self.smoothing.max_gap:
            self.looks.clear()
            self.cpu, self.mem = self.smoothing.cpu.start(), self.smoothing.memory.start()
        self.looks.append((now, need))
        cpu = self.cpu.target(Instant(now), Sample(need.cpu.as_cores, has.cpu.as_cores))
        mem = self.mem.target(Instant(now), Sample(float(need.mem.value), float(has.mem.value)))
        self.target = Resources(MilliCpu.cores(cpu), Bytes(ceil(mem)))

    def recent_need(self, now: float) -> Resources | None:
        """The largest of the samples whose need was still valid within ``RECENT`` before the last one."""
        if self.target is None or now - self.looks[0][0] < RECENT:
            return None
        ends = [at for at, _ in self.looks[1:]] + [now]
        last = self.looks[-1][0]
        return Resources.most(need for (_, need), end in zip(self.looks, ends, strict=True) if last - end < RECENT)


@given(st.sampled_from(POLICIES), st.lists(looks, min_size=1, max_size=12))
def test_skipped_observations_do_not_change_targets(
    smoothing: Smoothing, story: list[tuple[float, Resources | None, Resources, int]]
) -> None:
    stabilizer, every, now = Stabilizer(smoothing), EveryLook(smoothing), 0.0
    for pause, need, has, times in story:
        for _ in range(times):
            now += pause
            stabilizer.observe(need, has, Instant(now))
            every.observe(need, has, now)
            assert stabilizer.target == every.target
            assert stabilizer.recent_need(Instant(now)) == every.recent_need(now)
