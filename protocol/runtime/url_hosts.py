"""Checks of addresses from other parties before they go into a URL, and of URLs from people. Pure."""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address
from urllib.parse import urlsplit


def url_host(address: str) -> str:
    """An IP address as a URL writes it. Raises ``ValueError`` for anything else: it could name another host and path.

    >>> url_host("10.0.0.7"), url_host("fd00::7")
    ('10.0.0.7', '[fd00::7]')
    """
    ip = ip_address(address)
    if not isinstance(ip, IPv6Address):
        return str(ip)
    # A zone names an interface of one machine, and its "%" would need escaping in a URL.
    if ip.scope_id is not None:
        raise ValueError(f"expected an address without a zone, got {address!r}")
    return f"[{ip}]"


def server_url(given: str) -> str:
    """A server's URL, unchanged. Raises ``ValueError`` if no client could use it.

    >>> server_url("http://127.0.0.1:9090")
    'http://127.0.0.1:9090'
    >>> server_url("127.0.0.1:9090")
    Traceback (most recent call last):
    ValueError: expected a URL such as http://127.0.0.1:9090, got '127.0.0.1:9090'
    """
    try:
        parts = urlsplit(given)
        # Reading ``port`` raises for one that is out of range.
        is_url = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_url = False
    # ``urlsplit`` drops or keeps control characters depending on the version of Python.
    if not is_url or not given.isprintable() or " " in given:
        raise ValueError(f"expected a URL such as http://127.0.0.1:9090, got {given!r}")
    return given
