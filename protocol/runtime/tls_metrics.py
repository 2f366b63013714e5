"""Metrics of a process's certificates: lifetimes and reloads. The same in every program."""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from protocol.runtime.tls_files import FollowedTls, FollowingContext


class TlsMetrics(Collector):
    """Metrics of certificate files, read on each scrape."""

    def __init__(self, watched: Iterable[FollowedTls[Any]]) -> None:
        self._watched = list(watched)

    def collect(self) -> Iterator[Metric]:
        """The label ``certificate`` identifies the files; the ``part`` ``authority`` is the CA that expires last."""
        end, lifetime = (
            GaugeMetricFamily(f"autoscale_certificate_{name}", text, labels=("certificate", "part"))
            for name, text in (
                ("expiry_timestamp_seconds", "Expiry of a certificate, in seconds since 1970"),
                ("lifetime_seconds", "Time from a certificate's start to its expiry"),
            )
        )
        reloads = CounterMetricFamily(
            "autoscale_certificate_reloads",
            "Reloads of certificate files, by outcome",
            labels=("certificate", "outcome"),
        )
        for files in self._watched:
            for part, valid in files.validities().items():
                end.add_metric((files.name, part), valid.end)
                lifetime.add_metric((files.name, part), valid.end - valid.begin)
            reloads.add_metric((files.name, "accepted"), files.reloads)
            reloads.add_metric((files.name, "refused"), files.refusals)
        yield from (end, lifetime, reloads)


def watch_tls(registry: CollectorRegistry, watched: Iterable[FollowedTls[Any]]) -> None:
    """Register the metrics of ``watched``."""
    registry.register(TlsMetrics(watched))


def followed_by(tls: ssl.SSLContext | bool) -> list[FollowedTls[ssl.SSLContext]]:
    """The files that ``tls`` follows; empty if none."""
    return [tls.followed] if isinstance(tls, FollowingContext) else []
