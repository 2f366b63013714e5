"""Memory that is taken away from a postgres at work, again and again (B.7)."""

from __future__ import annotations

import math
import os
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import pytest

from protocol.units import Resources
from tests.kubernetes.pods.load import load
from tests.kubernetes.pods.plain_pods import applied, pod_of
from tests.kubernetes.pods.pod_stage import PodStage, actual, desired, objections, restarts
from tests.kubernetes.pods.pod_watch import Moment, PodWatch
from tests.kubernetes.pods.postgres import CEILING, FLOOR, quantities, template, workload

pytestmark = pytest.mark.kubernetes

CYCLES: Final = int(os.environ.get("AUTOSCALE_SHRINKS", "4"))
PODS: Final = 4
LARGE: Final = Resources.parse("500m", "1Gi")
SCALE: Final = 5
"""75 MB of tables are read all the time."""

COLD: Final = "/data/cold"
"""A file that is read once: it fills the memory of either size, and is not needed again."""

IN_ERROR: Final = 30.0
"""Seconds that the kubelet may say of a resize that it fails."""


@dataclass(frozen=True, slots=True)
class Shrink:
    """Seconds from when less was allowed until the pod requested less, and from then until it had less."""

    tried: float
    done: float


def shrink(stage: PodStage, watch: PodWatch, pod: str) -> Shrink:
    grows = time.monotonic()
    stage.bound(pod, CEILING, LARGE)
    watch.until(pod, lambda each: actual(each).mem == desired(each).mem == LARGE.mem, grows, 30.0)
    stage.cluster.kubectl("exec", pod, "--", "sh", "-c", f"cat {COLD} >/dev/null")
    began = time.monotonic()
    stage.bound(pod, CEILING)
    asked = watch.until(pod, lambda each: desired(each).mem < LARGE.mem, began, 180.0).at
    done = watch.until(pod, lambda each: actual(each).mem == desired(each).mem == FLOOR.mem, asked, 120.0).at
    shrunk = Shrink(asked - began, done - asked)
    print(shrunk)
    return shrunk


def longest_error(moments: list[Moment]) -> float:
    """For how long at most the kubelet said that a resize fails."""
    longest, since = 0.0, None
    for each in moments:
        if objections(each.pod).get("PodResizeInProgress") == "Error":
            since = each.at if since is None else since
            longest = max(longest, each.at - since)
        else:
            longest, since = max(longest, 0.0 if since is None else each.at - since), None
    return longest


def shrinks_of(stage: PodStage, watch: PodWatch, pod: str, cycles: int) -> tuple[list[Shrink], float]:
    """Shrink the pod this often under load; return the clients' reads. No transaction fails."""
    server = stage.server(pod)
    server.prepare(SCALE)
    stage.cluster.kubectl("exec", pod, "--", "sh", "-c", f"head -c 900M /dev/zero >{COLD}")
    with load(server, "--rate=20", clients=2), load(server, "-S", "--rate=200", clients=4) as reads:
        return [shrink(stage, watch, pod) for _ in range(cycles)], reads.transactions()


def test_memory_grows_and_shrinks_under_load(stage: PodStage, watch: PodWatch) -> None:
    """With several pods in parallel, because each shrink starts with a trial of 20 s."""
    sizes, names = quantities(FLOOR), [f"shrinks-{number}" for number in range(min(PODS, CYCLES))]
    with applied(stage, *(workload("StatefulSet", each, template(each, sizes, sizes)) for each in names)):
        pods, began = [pod_of(stage, each) for each in names], time.monotonic()
        cycles = math.ceil(CYCLES / len(pods))
        with ThreadPoolExecutor(len(pods)) as threads:
            done = list(threads.map(lambda pod: shrinks_of(stage, watch, pod, cycles), pods))
        shrinks, reads = [each for some, _ in done for each in some], sum(count for _, count in done)
        in_error = max(longest_error(watch.of(pod, began)) for pod in pods)
        tried, took = sorted(each.tried for each in shrinks), sorted(each.done for each in shrinks)
        print(
            f"{len(shrinks)} shrinks in {time.monotonic() - began:.0f} s: asked for after"
            f" {statistics.median(tried):.1f} s, {tried[-1]:.1f} s at most, then done after"
            f" {statistics.median(took):.2f} s, {took[-1]:.2f} s at most; in error for {in_error:.1f} s at most;"
            f" {reads:.0f} reads"
        )
        assert ([restarts(stage.pod(pod)) for pod in pods], in_error <= IN_ERROR) == ([0] * len(pods), True)
