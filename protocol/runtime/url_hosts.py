"""Validates untrusted addresses before they become part of a URL, and URLs from people. Pure."""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address
from urllib.parse import urlsplit


def url_host(address: str) -> str:
    """An IP address in URL notation. Raises ``ValueError`` for anything else, which could inject another host or path.

    >>> url_host("10.0.0.7"), url_host("fd00::7")
    ('10.0.0.7', '[fd00::7]')
    """
    ip = ip_address(address)
    if not isinstance(ip, IPv6Address):
        return str(ip)
    # A zone names a local interface, and its "%" would need escaping in a URL.
    if ip.scope_id is not None:
        raise ValueError(f"expected an address without a zone, got {address!r}")
    return f"[{ip}]"


def server_url(url: str) -> str:
    """Validate a server's URL and return it unchanged. Raises ``ValueError``.

    >>> server_url("http://127.0.0.1:9090")
    'http://127.0.0.1:9090'
    >>> server_url("127.0.0.1:9090")
    Traceback (most recent call last):
    ValueError: expected a URL such as http://127.0.0.1:9090, got '127.0.0.1:9090'
    """
    try:
        parts = urlsplit(url)
        # ``port`` raises ``ValueError`` if it is out of range.
        is_url = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_url = False
    # Depending on the version of Python, ``urlsplit`` drops or keeps control characters.
    if not is_url or not url.isprintable() or " " in url:
        raise ValueError(f"expected a URL such as http://127.0.0.1:9090, got {url!r}")
    return url
