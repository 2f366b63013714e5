"""Stand-in of a sleeping guest: reads its frames, sends the filter's answers, and reports when the guest must wake."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from deploy.neonvm.sleep.asleep_page import asleep_response
from deploy.neonvm.sleep.frame_filter import Action, SleeperAddress, StandInState, filter_frame
from deploy.neonvm.sleep.frame_sources import DivertedFrames, Frame, FrameSource, NetworkAttachment, SourceClosedError
from deploy.neonvm.sleep.pod_clients import PodClients
from deploy.neonvm.texts import sleep as texts
from protocol.runtime.clock import Clock
from protocol.units import Instant, Seconds

_BURST: Final = 64
"""Frames per turn of the event loop."""
_REST: Final = 9
"""Pause after a full turn, as a multiple of its duration: a flood gets a tenth of a CPU."""
_REOPEN_PAUSE: Final = 0.2
"""Seconds between attempts to reopen the network attachment."""
_UNREAD: Final = 4096
"""Frames to read from a source before it is closed."""
_SETTLED_WITHIN: Final = Seconds(1.0)
_KEY: Final = 16


class NetworkStandIn:
    """Stand-in that reads nothing at first. ``page`` is the guest's last metrics page, ``pod_ports`` are the ports of
    its database at its pod's address, if any. Not thread-safe.
    """

    def __init__(
        self,
        address: SleeperAddress,
        page: bytes,
        clock: Clock,
        attachment: NetworkAttachment,
        pod_ports: Sequence[int] = (),
    ) -> None:
        self.woken = asyncio.Event()
        self._address = address
        self._clock = clock
        self._attachment = attachment
        self._state = StandInState(asleep_response(page), secrets.token_bytes(_KEY))
        self._wake_reason = ""
        self._pod_clients = PodClients(pod_ports, self._admits)
        self._end: FrameSource | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._diverted_end: asyncio.Event | None = None

    def read_diverted(self, end: socket.socket) -> None:
        """Read the frames that QEMU diverts into ``end`` from now on, then close it. QEMU may start."""
        self._pod_clients.release()
        self.read_from(DivertedFrames(end, self._attachment))
        self._diverted_end = asyncio.Event()

    def read_network(self) -> None:
        """Read the guest's network attachment from now on, because QEMU has exited; retry until it opens."""
        self._pod_clients.listen()
        try:
            self.read_from(self._attachment.open())
        except OSError:
            self.read_from(None)
            self._later(_REOPEN_PAUSE, self.read_network)

    def read_from(self, end: FrameSource | None) -> None:
        """Switch to ``end``, after reading what the previous source still has."""
        self._cancel_timer()
        if self._end is not None:
            asyncio.get_running_loop().remove_reader(self._end.fileno())
            with suppress(SourceClosedError):
                self._read(_UNREAD)
            self._leave()
        self._end = end
        self._listen()

    async def wait_for_wake(self) -> str:
        """Wait for a frame that needs the guest; return sender and reason in one line."""
        await self.woken.wait()
        return self._wake_reason

    async def drain(self) -> None:
        """Wait, at most a second, until QEMU has closed its end of the diverted frames; read the rest, and stop."""
        if self._diverted_end is not None:
            await self._clock.wait(self._diverted_end, Instant(self._clock.now() + _SETTLED_WITHIN))
        # After a flood some are unread, and a FIN that is acknowledged later would not be replayed.
        self.close()

    def queued_frames(self, header_size: int | None = None) -> list[Frame]:
        """The frames to replay to the guest, with offload headers of ``header_size`` bytes (None: the attachment's
        current size).
        """
        return self._state.frames.all(self._attachment.header_size() if header_size is None else header_size)

    def close(self) -> None:
        """Stop reading; QEMU reads the network attachment."""
        self._pod_clients.release()
        self.read_from(None)

    def pass_on_clients(self) -> None:
        """Connect clients at the pod's address, which have waited, to the guest, which runs."""
        self._pod_clients.pass_on()

    def hang_up_clients(self) -> None:
        """Close the connections of clients at the pod's address: the guest will not run here."""
        self._pod_clients.hang_up()

    def _admits(self, address: str, port: int) -> bool:
        """Wake the guest for a client at the pod's address. Return False if the client must not wake it."""
        if self._address.is_quiet(socket.inet_aton(address)):
            return False
        if not self._state.is_woken:
            self._state.is_woken = True
            self._wake(f"{address}:{port}", texts.NEW_SESSION)
        return True

    def _listen(self) -> None:
        if self._end is not None:
            asyncio.get_running_loop().add_reader(self._end.fileno(), self._on_readable)

    def _on_readable(self) -> None:
        end = self._end
        if end is None:
            return
        began = self._clock.now()
        try:
            count = self._read(_BURST)
        except SourceClosedError:
            asyncio.get_running_loop().remove_reader(end.fileno())
            self._leave()
            # A diverted stream is closed on purpose; a network attachment is reopened.
            if not isinstance(end, DivertedFrames):
                self._later(_REOPEN_PAUSE, self.read_network)
            return
        if count >= _BURST:
            asyncio.get_running_loop().remove_reader(end.fileno())
            self._later(_REST * (self._clock.now() - began), self._listen)

    def _read(self, most: int) -> int:
        """Read until the source is empty, or about ``most`` frames. Return their number."""
        count = 0
        with suppress(BlockingIOError):
            while self._end is not None and count < most:
                frames = self._end.read()
                for header, frame in frames:
                    self._take(self._end, header, frame)
                count += len(frames)
        return count

    def _take(self, end: FrameSource, header: bytes, frame: bytes) -> None:
        verdict = filter_frame(frame, self._address, self._state, self._clock.now(), header)
        for answer in verdict.answers:
            end.write(answer)
        if verdict.action is Action.WAKE:
            self._wake(verdict.who, verdict.why)

    def _wake(self, who: str, why: str) -> None:
        self._wake_reason = texts.WOKEN_BY.format(who=who, why=why)
        self.woken.set()

    def _leave(self) -> None:
        if self._end is not None:
            self._end.close()
            self._end = None
            if self._diverted_end is not None:
                self._diverted_end.set()

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        self._cancel_timer()
        self._timer = asyncio.get_running_loop().call_later(seconds, act)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
