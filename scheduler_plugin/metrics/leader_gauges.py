"""Gauges of what only the leader knows (B.3)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from prometheus_client import CollectorRegistry, Gauge


class LeaderGauges:
    """The gauges that what acts sets. Each is made here, so that a replica that stands by shows none."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._gauges: list[Gauge] = []
        self._resets: list[Callable[[], object]] = []
        self._leads = False

    def gauge(self, name: str, text: str, *labels: str) -> Gauge:
        """One more, before the first term. Children with ``labels`` are those of one term: look them up in each."""
        # Registered only while this process leads: what a replica knew when it was deposed is no fact.
        made = Gauge(name, text, labels, registry=None)
        self._gauges.append(made)
        # A gauge with labels loses its children; one without can only be set back.
        self._resets.append(made.clear if labels else partial(made.set, 0.0))
        return made

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
                # A term must not begin with what was set in an earlier one.
                reset()
