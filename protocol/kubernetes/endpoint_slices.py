"""EndpointSlices: the ready addresses of a Service (pure)."""

from __future__ import annotations

from collections.abc import Iterable

from protocol.kubernetes.objects import Json, JsonObject, child, items


def ready_addresses(endpoint_slice: JsonObject) -> list[tuple[str, int]]:
    """Addresses and ports of a slice that accept new connections.

    >>> serving = {"addresses": ["10.0.0.1"], "conditions": {"ready": True}}
    >>> ready_addresses({"endpoints": [serving, {"addresses": ["10.0.0.2"]}], "ports": [{"port": 5432}]})
    [('10.0.0.1', 5432)]
    """
    ports = [port["port"] for port in items(endpoint_slice, "ports") if isinstance(port.get("port"), int)]
    addresses = _addresses(items(endpoint_slice, "endpoints"))
    return [(address, port) for address in addresses for port in ports if isinstance(port, int)]


def _addresses(endpoints: Iterable[Json]) -> Iterable[str]:
    for endpoint in endpoints:
        addresses = endpoint.get("addresses")
        # A missing or null ``ready`` means unknown, and does not count as ready here.
        if child(endpoint, "conditions").get("ready") is True and isinstance(addresses, list):
            yield from (str(address) for address in addresses)
