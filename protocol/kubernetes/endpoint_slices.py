"""EndpointSlices: where new clients of a Service can go (pure)."""

from __future__ import annotations

from collections.abc import Iterable

from protocol.kubernetes.objects import Json, JsonObject, child, items


def ready_addresses(found: JsonObject) -> list[tuple[str, int]]:
    """Addresses and the port of a slice that accept new clients.

    >>> serving = {"addresses": ["10.0.0.1"], "conditions": {"ready": True}}
    >>> ready_addresses({"endpoints": [serving, {"addresses": ["10.0.0.2"]}], "ports": [{"port": 5432}]})
    [('10.0.0.1', 5432)]
    """
    ports = [port["port"] for port in items(found, "ports") if isinstance(port.get("port"), int)]
    return [
        (address, port) for address in _addresses(items(found, "endpoints")) for port in ports if isinstance(port, int)
    ]


def _addresses(endpoints: Iterable[Json]) -> Iterable[str]:
    for endpoint in endpoints:
        addresses = endpoint.get("addresses")
        # A missing or null ``ready`` means unknown, and does not count as ready here.
        if child(endpoint, "conditions").get("ready") is True and isinstance(addresses, list):
            yield from (str(address) for address in addresses)
