"""Selects the proxy for a URL by kubectl's rules (Go's ``httpproxy``).

``HTTPS_PROXY`` or ``HTTP_PROXY`` by the URL's scheme, in upper case first, unless ``NO_PROXY`` names the host.
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address, ip_network
from typing import Final
from urllib.parse import urlsplit

_SCHEMES: Final = ("http", "https")
_SOCKS: Final = ("socks5", "socks5h")
_PORTS: Final = {"http": 80, "https": 443}


class ProxyError(ValueError):
    """The proxy is invalid; the message says where it is set and why."""


def proxy_for(url: str, environment: Mapping[str, str]) -> str:
    """The proxy for ``url``; empty if none. Raises ``ProxyError``.

    >>> proxy_for("https://10.0.0.1:6443", {"HTTPS_PROXY": "proxy:3128", "NO_PROXY": ".example.org,192.168.0.0/16"})
    'http://proxy:3128'
    >>> proxy_for("https://10.0.0.1:6443", {"HTTPS_PROXY": "proxy:3128", "NO_PROXY": "10.0.0.0/8"})
    ''
    """
    target = urlsplit(url)
    variable = f"{target.scheme}_proxy"
    proxy = environment.get(variable.upper()) or environment.get(variable) or ""
    # A trailing dot marks an absolute name, and is not part of the host in ``NO_PROXY``.
    host, port = (target.hostname or "").rstrip("."), target.port or _PORTS.get(target.scheme, 0)
    excluded = environment.get("NO_PROXY") or environment.get("no_proxy") or ""
    # Go's ``httpproxy`` never proxies loopback addresses, and does not read ``ALL_PROXY``.
    if not proxy or is_loopback(host) or any(_covers(entry, host, port) for entry in excluded.split(",")):
        return ""
    # Proxies are commonly written as HOST:PORT.
    return checked_proxy(proxy if "://" in proxy else f"http://{proxy}", variable.upper())


def checked_proxy(proxy: str, setting: str) -> str:
    """Validate a proxy's URL and return it; ``setting`` names it in messages. Raises ``ProxyError``.

    >>> checked_proxy("socks5://127.0.0.1:1080", "proxy-url")
    Traceback (most recent call last):
    protocol.kubernetes.proxies.ProxyError: proxy-url: SOCKS proxies are not supported; use an HTTP proxy, \
or reach the API server by kubectl proxy
    """
    try:
        parts = urlsplit(proxy)
        # ``port`` raises ``ValueError`` if it is not a number.
        is_usable = parts.scheme in _SCHEMES and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        is_usable = False
    else:
        if parts.scheme in _SOCKS:
            hint = "use an HTTP proxy, or reach the API server by kubectl proxy"
            raise ProxyError(f"{setting}: SOCKS proxies are not supported; {hint}")
    if not is_usable:
        # Do not quote it: it may contain a password.
        raise ProxyError(f"{setting}: expected a proxy as http://HOST:PORT")
    return proxy


def is_loopback(host: str) -> bool:
    """Return True for a loopback address or ``localhost``; any other name could resolve to anything.

    >>> is_loopback("127.0.0.2"), is_loopback("::1"), is_loopback("localhost"), is_loopback("db.example")
    (True, True, True, False)
    """
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _covers(entry: str, host: str, port: int) -> bool:
    """Return True if an entry of ``NO_PROXY`` (host, domain, address or network, optional port) covers the host."""
    entry, host = entry.strip().lower(), host.lower()
    if entry == "*":
        return True
    try:
        return ip_address(host) in ip_network(entry, strict=False)
    except ValueError:
        pass
    name, colon, wanted = entry.rpartition(":")
    if colon and wanted.isdecimal() and len(wanted) <= 5:
        if int(wanted) != port:
            return False
        entry = name
    # "*.example.org" and ".example.org" mean subdomains; "example.org" means the host as well.
    domain = entry.strip("[]").removeprefix("*")
    if not domain:
        return False
    return host.endswith(domain) if domain.startswith(".") else host == domain or host.endswith(f".{domain}")
