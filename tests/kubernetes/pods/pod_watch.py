"""All versions of some pods, with the times at which a watch delivered them."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import httpx2 as httpx

from protocol.kubernetes.resources import PODS
from tests.kubernetes.looks import client_of_people
from tests.kubernetes.pods.pod_stage import Obj, actual, desired, objections, status
from tests.kubernetes.real_kubernetes import NotYetError, RealKubernetes

_QUIET: Final = 5.0
"""Seconds after which a stream without news is opened again, so that it can end."""


@dataclass(frozen=True, slots=True)
class Moment:
    """A pod as it became ``at`` a time of the monotonic clock; the last one before it ``is_gone``."""

    at: float
    pod: Obj
    is_gone: bool


@dataclass(slots=True)
class PodWatch:
    """Observed changes of pods in the default namespace."""

    moments: list[Moment] = field(default_factory=list)
    _news: threading.Condition = field(default_factory=threading.Condition)
    _over: threading.Event = field(default_factory=threading.Event)

    def of(self, name: str, since: float = 0.0) -> list[Moment]:
        """The states of one pod since then."""
        with self._news:
            return [each for each in self.moments if each.at >= since and each.pod["metadata"]["name"] == name]

    def until(self, name: str, holds: Callable[[Obj], bool], since: float, seconds: float) -> Moment:
        """The first state since then that ``holds``. Raises ``NotYetError`` with the pod's last one."""
        deadline = time.monotonic() + seconds
        with self._news:
            while True:
                seen = [each for each in self.moments if each.at >= since and each.pod["metadata"]["name"] == name]
                if (moment := next((each for each in seen if holds(each.pod)), None)) is not None:
                    return moment
                if not self._news.wait(deadline - time.monotonic()):
                    raise NotYetError(f"{name}: not within {seconds:g} s: {[_told(each.pod) for each in seen][-3:]}")

    def follow(self, http: httpx.Client) -> None:
        """Reads until it is over."""
        found = http.get(PODS.path("default")).raise_for_status().json()
        since = found["metadata"]["resourceVersion"]
        while not self._over.is_set():
            asked = {"watch": "true", "resourceVersion": since, "timeoutSeconds": f"{_QUIET:.0f}"}
            with http.stream("GET", PODS.path("default"), params=asked, timeout=4 * _QUIET) as events:
                for event in map(json.loads, events.iter_lines()):
                    since = event["object"]["metadata"]["resourceVersion"]
                    with self._news:
                        self.moments.append(Moment(time.monotonic(), event["object"], event["type"] == "DELETED"))
                        self._news.notify_all()
                    if self._over.is_set():
                        return

    def end(self) -> None:
        """No more is read, within a few seconds."""
        self._over.set()


def _told(pod: Obj) -> str:
    if "resources" not in status(pod):
        return str(pod["status"].get("phase"))
    return f"requests {desired(pod)}, has {actual(pod)}, {objections(pod)}"


@contextmanager
def watching(cluster: RealKubernetes) -> Iterator[PodWatch]:
    """A watch of the pods of the default namespace until the end of the block."""
    watch = PodWatch()
    with client_of_people(cluster.kubeconfig, timeout=20) as http:
        reader = threading.Thread(target=watch.follow, args=(http,))
        reader.start()
        try:
            yield watch
        finally:
            watch.end()
            reader.join()
