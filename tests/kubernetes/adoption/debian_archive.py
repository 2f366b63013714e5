"""Debian's archive of all its states, where it cannot be reached: one state, which is what Debian has now."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler

import httpx2 as httpx

from tests.loopback_http import served

STATE = "20260102T030405Z"
_ASKED = re.compile(rf"http://snapshot\.debian\.org/archive/(debian|debian-security)/{STATE}/(\S+)")


@contextmanager
def archive_proxy() -> Iterator[str]:
    """The address of an HTTP proxy that has ``STATE`` alone. Programs take it from ``http_proxy``."""
    with httpx.Client(timeout=60, follow_redirects=True) as debian:

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked = _ASKED.fullmatch(self.path)
                if asked is None:
                    self.send_error(404, "not in the archive")
                    return
                with debian.stream("GET", f"http://deb.debian.org/{asked[1]}/{asked[2]}") as answer:
                    self.send_response(answer.status_code)
                    length = answer.headers.get("Content-Length")
                    if length is not None:
                        self.send_header("Content-Length", length)
                    self.send_header("Connection", "close")
                    self.end_headers()
                    for chunk in answer.iter_raw():
                        self.wfile.write(chunk)

            def log_message(self, *_: object) -> None:
                """Says nothing."""

        with served(Handler) as address:
            yield f"http://{address}"
