"""Validates untrusted addresses before they become part of a URL, URLs from users, and hosts of requests. Pure."""

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


def host_name(host: str) -> str:
    """The name or address in a ``Host`` header, in lower case and without its port; empty if there is none.

    >>> host_name("Shop.example:80"), host_name("[::1]:80"), host_name("[::1")
    ('shop.example', '::1', '')
    """
    # IPv6 addresses contain colons.
    if host.startswith("["):
        name, closed, _ = host[1:].partition("]")
        return name.lower() if closed else ""
    return host.partition(":")[0].lower()


def names_domain(host: str) -> bool:
    """Return True if a ``Host`` header contains a domain, whose owner may let it resolve to any address.

    >>> names_domain("shop.example:10297"), names_domain("localhost:10297"), names_domain("[::1]"), names_domain("")
    (True, False, False, False)
    """
    name = host_name(host)
    if name in {"", "localhost"}:
        return False
    try:
        ip_address(name)
    except ValueError:
        return True
    return False


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
