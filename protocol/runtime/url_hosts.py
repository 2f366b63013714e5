"""Addresses that others say, on their way into a URL. Pure."""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address


def url_host(address: str) -> str:
    """An IP address as a URL writes it. Raises ``ValueError`` for anything else: it could name another host and path.

    >>> url_host("10.0.0.7"), url_host("fd00::7")
    ('10.0.0.7', '[fd00::7]')
    """
    found = ip_address(address)
    if not isinstance(found, IPv6Address):
        return str(found)
    if found.scope_id is not None:
        raise ValueError(f"expected an address without a zone, got {address!r}")
    return f"[{found}]"
