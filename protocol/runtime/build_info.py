"""Metrics of every program: its version, and its process's resource usage."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Gauge, ProcessCollector

from protocol import VERSION


def describe_process(registry: CollectorRegistry, program: str) -> None:
    """Add ``autoscale_build_info`` and ``process_*`` to a program's metrics.

    >>> registry = CollectorRegistry()
    >>> describe_process(registry, "autoscale-example")
    >>> registry.get_sample_value("autoscale_build_info", {"program": "autoscale-example", "version": VERSION})
    1.0
    """
    about = Gauge(
        "autoscale_build_info", "1, with the program and its version", ("program", "version"), registry=registry
    )
    about.labels(program, VERSION).set(1)
    ProcessCollector(registry=registry)
