"""Certificates of listeners: read from files, and read again when the files change; open connections keep theirs."""

from __future__ import annotations

import asyncio
import logging
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Never

from protocol.runtime.clock import Clock
from protocol.units import Seconds

LOG: Final = logging.getLogger("autoscale.serving")

CERTIFICATE_INTERVAL: Final = Seconds(10.0)
"""How often the files are looked at."""


@dataclass(frozen=True, slots=True)
class Tls:
    """A certificate with its key, and the authority of client certificates (None: clients need none)."""

    certificate: Path
    key: Path
    client_authority: Path | None = None

    def stamp(self) -> tuple[int, ...]:
        """Changes whenever one of the files does."""
        return tuple(path.stat().st_mtime_ns for path in (self.certificate, self.key))

    def context(self) -> ssl.SSLContext:
        """What a listener shows and demands. Raises ``OSError`` and ``ssl.SSLError``."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, self.key)
        if self.client_authority is not None:
            context.load_verify_locations(self.client_authority)
            context.verify_mode = ssl.CERT_REQUIRED
        return context


async def renew(name: str, tls: Tls, context: ssl.SSLContext, clock: Clock) -> Never:
    """Loads the certificate anew into ``context`` whenever its files change, for ever."""
    known = await asyncio.to_thread(tls.stamp)
    while True:
        await clock.sleep(CERTIFICATE_INTERVAL)
        try:
            stamp = await asyncio.to_thread(tls.stamp)
            if stamp != known:
                await asyncio.to_thread(context.load_cert_chain, tls.certificate, tls.key)
                known = stamp
                LOG.info("certificate renewed", extra={"listener": name})
        except (OSError, ssl.SSLError) as error:
            LOG.error("certificate not renewed, the old one stays", extra={"listener": name, "reason": str(error)})
