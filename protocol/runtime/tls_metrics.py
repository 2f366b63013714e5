"""How long the certificates of a process last, and whether new ones were taken in; the same in every program."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from protocol.runtime.tls_files import FollowedTls, FollowingContext


class TlsMetrics(Collector):
    """Reads the files on each scrape. ``wall`` is the time in seconds since 1970."""

    def __init__(self, watched: Iterable[FollowedTls[Any]], wall: Callable[[], float]) -> None:
        self._watched = list(watched)
        self._wall = wall

    def collect(self) -> Iterator[Metric]:
        """``name`` is whose files they are, ``part`` the certificate or the authorities (the last one that ends)."""
        left = GaugeMetricFamily(
            "autoscale_tls_expires_in_seconds", "Until a certificate ends", labels=("name", "part")
        )
        taken = CounterMetricFamily("autoscale_tls_reloads", "New certificates, by outcome", labels=("name", "outcome"))
        for each in self._watched:
            for part, end in each.expiries().items():
                left.add_metric((each.name, part), end - self._wall())
            taken.add_metric((each.name, "accepted"), each.reloads)
            taken.add_metric((each.name, "refused"), each.refusals)
        yield from (left, taken)


def watch_tls(registry: CollectorRegistry, watched: Iterable[FollowedTls[Any]], wall: Callable[[], float]) -> None:
    """Adds the metrics of ``watched`` to ``registry``."""
    registry.register(TlsMetrics(watched, wall))


def followed_by(tls: ssl.SSLContext | bool) -> list[FollowedTls[ssl.SSLContext]]:
    """What a connection's context follows; nothing where it follows no files."""
    return [tls.followed] if isinstance(tls, FollowingContext) else []
