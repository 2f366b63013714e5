"""Policies as users write them: their effect, and the errors of invalid ones."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.config import PolicyError, read_policy
from agent.core.policy import (
    CachePolicy,
    CpuPolicy,
    MemoryPolicy,
    MonitorPolicy,
    Policy,
    SleepPolicy,
    Smoothing,
    Timing,
)
from protocol.smoothing.default import DEFAULT_CPU, DEFAULT_MEMORY
from protocol.smoothing.policy import parse_policy
from protocol.units import Bytes, Seconds

HOLD = parse_policy([{"hold": {"window": "30s"}}], "cpu")
WHOLE = """
cpu: {target: 0.7, pressureDeadband: 0.2, pressureFrom: 0.4, pressureFull: 0.9, reach: 2}
memory: {target: 0.8, kernelAllowance: 64Mi, pressureThreshold: 0.2, pressureStep: 0.5, killHold: 5m}
smoothing: {cpu: [hold: {window: 30s}], maxGap: 1500ms}
timing: {tick: 10, tickJitter: 1s, migratingTick: 1, startSpread: 0, unfinishedShrink: 9s, settle: 1,
  stale: 4s, scrape: 500ms}
"""


def test_a_document_changes_what_it_names() -> None:
    assert read_policy(WHOLE, Policy()) == Policy(
        cpu=CpuPolicy(0.7, 0.2, 0.4, 0.9, 2.0),
        memory=MemoryPolicy(0.8, Bytes(64 * 1024**2), 0.2, 0.5, Seconds(300.0)),
        smoothing=Smoothing(HOLD, DEFAULT_MEMORY, Seconds(1.5)),
        timing=Timing(
            tick=Seconds(10.0),
            tick_jitter=Seconds(1.0),
            migrating_tick=Seconds(1.0),
            start_spread=Seconds(0.0),
            unfinished_shrink=Seconds(9.0),
            settle=Seconds(1.0),
            stale=Seconds(4.0),
            scrape=Seconds(0.5),
        ),
    )


CACHE = """memory:
  cache: {enabled: false, stall: 0.2, turnover: 0.5, step: 0.05, idleStep: 0.5, watch: 30s, retry: 10m, longest: 1h,
    idleAfter: 1m, remember: 2h, growth: 1, gain: 0.25, trickle: 64Ki, idleShare: 0.2}
"""


def test_reads_cache_policy() -> None:
    spans = Seconds(30.0), Seconds(600.0), Seconds(3600.0), Seconds(60.0), Seconds(7200.0)
    assert read_policy(CACHE, Policy()).memory == MemoryPolicy(
        cache=CachePolicy(False, 0.2, 0.5, 0.05, 0.5, *spans, 1.0, 0.25, Bytes(65_536), 0.2)
    )
    assert read_policy("memory: {cache: {step: 0.2}, target: 0.5}", Policy()).memory == MemoryPolicy(
        target=0.5, cache=CachePolicy(step=0.2)
    )


def test_reads_monitor_policy() -> None:
    assert read_policy("monitor: {hold: 0s, request: 1m, connection: 0}", Policy()).monitor == MonitorPolicy(
        Seconds(0.0), Seconds(60.0), 0.0
    )


def test_reads_sleep_policy() -> None:
    windows = ("Mon-Fri 07:00-20:00 Europe/Berlin", "Sat 22:00-02:00 UTC")
    base = read_policy(f"sleep: {{after: 15m, keepAwake: {list(windows)}}}", Policy())
    assert base.sleep == SleepPolicy(Seconds(900.0), windows)
    assert read_policy("sleep: {after: 0}", base).sleep == SleepPolicy(Seconds(0.0), windows)
    assert read_policy("sleep: {keepAwake: []}", base).sleep == SleepPolicy(Seconds(900.0))


def test_defaults_without_configuration() -> None:
    assert Policy().smoothing == Smoothing(DEFAULT_CPU, DEFAULT_MEMORY, Seconds(10.0))


def test_smoothing_sets_stages_per_resource() -> None:
    cpu = read_policy("smoothing: {cpu: [hold: {window: 30s}]}", Policy())
    assert cpu.smoothing == Smoothing(cpu=HOLD)
    both = read_policy("smoothing: {memory: {stages: [hold: {window: 30s}]}}", cpu)
    assert both.smoothing == Smoothing(HOLD, parse_policy([{"hold": {"window": "30s"}}], "memory"))
    assert read_policy("cpu: {target: 0.5}", both).smoothing == both.smoothing
    assert read_policy("smoothing: {memory: default}", both).smoothing == cpu.smoothing
    assert read_policy("smoothing: {cpu: default, memory: default}", both) == Policy()
    assert read_policy("smoothing: default", both) == Policy()


@pytest.mark.parametrize("text", ["", "# nothing\n", "{}", "cpu: {}\n"])
def test_what_is_not_named_stays(text: str) -> None:
    base = replace(Policy(), cpu=CpuPolicy(target=0.3))
    assert read_policy(text, base) == base


def test_json_is_yaml() -> None:
    assert read_policy('{"smoothing": {"maxGap": "1h"}}', Policy()).smoothing.max_gap == 3600.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cpu: {target: 7}", "cpu.target: expected float <= 1.0"),
        ("cpu: {target: 0}", "cpu.target: expected float >= 0.01"),
        ("cpu: {target: 1.0e-308}", "cpu.target: expected float >= 0.01"),
        ("memory: {target: 1.0e-308}", "memory.target: expected float >= 0.01"),
        ("cpu: {reach: .nan}", "cpu.reach: "),
        ("cpu: {wish: 1}", "cpu: object contains unknown field wish"),
        ("smooth: {}", "document: object contains unknown field smooth"),
        ("memory: {kernelAllowance: lots}", "memory.kernelAllowance: expected a quantity"),
        ("memory: {kernelAllowance: -1}", "memory.kernelAllowance: expected a quantity of zero or more"),
        (
            "smoothing: {maxGap: soon}",
            'smoothing.maxGap: expected seconds or a duration such as "90s", "5m" or "1h30m", got \'soon\'',
        ),
        ("smoothing: {maxGap: 0}", "smoothing.maxGap: expected 1 to 3600 seconds, got 0"),
        ("smoothing: {maxGap: 1}", "smoothing.maxGap: expected more than timing.scrape (1 s)"),
        (
            "smoothing: {cpu: {resource: memory, stages: [hold: {window: 1}]}}",
            "smoothing.cpu.resource: expected cpu, got",
        ),
        ("smoothing: {cpu: 5}", "smoothing.cpu: expected a list of 1 to 32 stages"),
        ("timing: {tick: 60s}", "timing.tick: expected 1 to 15 seconds, got '60s'"),
        ("timing: {tick: 2, tickJitter: 2}", "timing.tickJitter: expected less than timing.tick (2 s)"),
        ("cpu: {pressureFrom: 0.8}", "cpu.pressureFrom: expected less than cpu.pressureFull (0.7)"),
        ("memory: {cache: {step: 1}}", "memory.cache.step: expected float < 1.0"),
        ("memory: {cache: {growth: .nan}}", "memory.cache.growth: "),
        ("memory: {cache: {watch: 1s}}", "memory.cache.watch: expected 5 to 3600 seconds, got '1s'"),
        ("memory: {cache: {retry: 9h}}", "memory.cache: expected watch <= retry <= longest <= remember"),
        ("memory: {cache: on}", "memory.cache: "),
        ("monitor: {hold: 2m}", "monitor.hold: expected 0 to 60 seconds, got '2m'"),
        ("monitor: {connection: -1}", "monitor.connection: expected float >= 0.0"),
        ("memory: {cache: {trickle: some}}", "memory.cache.trickle: expected a quantity"),
        ("[1, 2]", "document: expected object, got array"),
        ("cpu: {target: [}", "invalid YAML: "),
        ("smoothing: best", "smoothing: expected default, or policies for cpu and memory, got 'best'"),
        ("smoothing: {gpu: []}", "smoothing.gpu: unknown field; expected cpu, memory and maxGap"),
        ("smoothing: {cpu: [{hold: {window: soon}}]}", "smoothing.cpu[0].hold.window: "),
        ("smoothing: {memory: [{sustain: {over: 5}}]}", "smoothing.memory[0].sustain: memory must grow immediately"),
        ("timing: {scrape: true}", "timing.scrape: "),
        ("sleep: {after: 59s}", "sleep.after: expected 0 (never) or at least 60 seconds, got 59"),
        ("sleep: {after: 8d}", "sleep.after: "),
        ("sleep: {after: 700000}", "sleep.after: expected 0 to 604800 seconds, got 700000"),
        ("sleep: {keepAwake: Mon}", "sleep.keepAwake: expected array, got str"),
        ("sleep: {keepAwake: [Mon]}", "sleep.keepAwake[0]: expected days, times and a time zone like"),
        ("sleep: {keepAwake: ['Mon 07:00-20:00 Mars/Base']}", "sleep.keepAwake[0]: no such time zone: Mars/Base"),
        (f"sleep: {{keepAwake: {['Mon 07:00-20:00 UTC'] * 17}}}", "sleep.keepAwake: expected array of length <= 16"),
    ],
)
def test_bad_document_names_the_path(text: str, message: str) -> None:
    with pytest.raises(PolicyError) as caught:
        read_policy(text, Policy())
    assert str(caught.value).startswith(message)
