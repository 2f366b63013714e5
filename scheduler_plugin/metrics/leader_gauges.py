"""Gauges of what only the leader knows (B.3)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from prometheus_client import CollectorRegistry, Gauge


class LeaderGauges:
    """Gauges that only the leader sets; a standby replica shows none of them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._gauges: list[Gauge] = []
        self._resets: list[Callable[[], object]] = []
        self._leads = False

    def gauge(self, name: str, text: str, *labels: str) -> Gauge:
        """Creates a gauge; call it before the first term. Children with ``labels`` last for one term: look them up in
        each.
        """
        # Registered only while this process leads: a deposed leader's numbers are stale.
        gauge = Gauge(name, text, labels, registry=None)
        self._gauges.append(gauge)
        # A gauge with labels loses its children; one without can only be set back.
        self._resets.append(gauge.clear if labels else partial(gauge.set, 0.0))
        return gauge

    def leads(self, leads: bool) -> None:
        """This process begins to lead, or leads no more."""
        # Registering a gauge twice raises.
        if leads is self._leads:
            return
        self._leads = leads
        for gauge, reset in zip(self._gauges, self._resets, strict=True):
            if leads:
                self._registry.register(gauge)
            else:
                self._registry.unregister(gauge)
                # A term must not begin with the numbers of an earlier one.
                reset()
