"""Metrics of the certificates of a process: their lifetimes and reloads; the same in every program."""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from protocol.runtime.tls_files import FollowedTls, FollowingContext


class TlsMetrics(Collector):
    """Reads the files on each scrape."""

    def __init__(self, watched: Iterable[FollowedTls[Any]]) -> None:
        self._watched = list(watched)

    def collect(self) -> Iterator[Metric]:
        """``certificate`` is whose files they are, ``part`` the certificate or, of the authorities, the last to end."""
        end, whole = (
            GaugeMetricFamily(f"autoscale_certificate_{name}", text, labels=("certificate", "part"))
            for name, text in (
                ("expiry_timestamp_seconds", "When a certificate ends, in seconds since 1970"),
                ("lifetime_seconds", "From a certificate's begin to its end"),
            )
        )
        taken = CounterMetricFamily(
            "autoscale_certificate_reloads", "New files, by outcome", labels=("certificate", "outcome")
        )
        for files in self._watched:
            for part, valid in files.shown().items():
                end.add_metric((files.name, part), valid.end)
                whole.add_metric((files.name, part), valid.end - valid.begin)
            taken.add_metric((files.name, "accepted"), files.reloads)
            taken.add_metric((files.name, "refused"), files.refusals)
        yield from (end, whole, taken)


def watch_tls(registry: CollectorRegistry, watched: Iterable[FollowedTls[Any]]) -> None:
    """Adds the metrics of ``watched`` to ``registry``."""
    registry.register(TlsMetrics(watched))


def followed_by(tls: ssl.SSLContext | bool) -> list[FollowedTls[ssl.SSLContext]]:
    """The files that a connection's context follows; empty if none."""
    return [tls.followed] if isinstance(tls, FollowingContext) else []
