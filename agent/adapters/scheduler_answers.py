"""Meaning of the scheduler's answers, whether alone or in a batch (S4.4).

The status says whose fault it is; see ``_FAULTS``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from agent import texts
from agent.adapters.http_errors import reason_in
from agent.core.events import Fault
from agent.ports import PortError
from protocol.codec import MalformedResponseError, PluginResponseView, decode_response
from protocol.units import Bytes, Seconds
from protocol.versions import ProtocolVersion

LARGEST: Final = 64 * 1024

_FAULTS: Final[Mapping[int, tuple[Fault, str]]] = {
    400: (Fault.AGENT, texts.NOT_UNDERSTOOD),
    401: (Fault.AGENT, texts.NOT_ACCEPTED),
    403: (Fault.AGENT, texts.NOT_ITS_POD),
    404: (Fault.SCHEDULER, texts.POD_UNKNOWN),
    409: (Fault.AGENT, texts.OTHER_AGENT),
    503: (Fault.SCHEDULER, texts.NOT_READY),
}

_CONFLICT: Final = 409


@dataclass(frozen=True, slots=True)
class SchedulerAnswer:
    """An answer as received; ``retry_after`` is the scheduler's, None if absent or unusable."""

    status: int
    body: bytes
    retry_after: Seconds | None = None

    def refusal(self) -> PortError:
        """The error for an answer without a permit."""
        fault, what = _FAULTS.get(self.status, (Fault.SCHEDULER, texts.SCHEDULER_SAYS.format(status=self.status)))
        is_others_turn = self.status == _CONFLICT
        return PortError(fault, f"{what}: {reason_in(self.body)}", self.retry_after, is_others_turn=is_others_turn)

    def permit(self, version: ProtocolVersion, slot_size: Bytes) -> PluginResponseView:
        """The permit in it. Raises ``PortError``."""
        if self.status != 200:
            raise self.refusal()
        # A permit has a few hundred bytes; whatever this is, it is not decoded.
        if len(self.body) > LARGEST:
            raise PortError(Fault.SCHEDULER, texts.SCHEDULER_SAYS_TOO_MUCH.format(most=LARGEST))
        try:
            return decode_response(version, self.body, slot_size)
        except MalformedResponseError as error:
            raise senseless(error) from None


def senseless(error: Exception) -> PortError:
    """The scheduler's answer cannot be read."""
    return PortError(Fault.SCHEDULER, texts.SCHEDULER_UNREADABLE.format(error=error))


def retry_after(text: str) -> Seconds | None:
    """The header's seconds; None for a date or anything else."""
    # ``isdecimal`` alone takes digits of other scripts.
    return Seconds(float(text)) if text.isascii() and text.isdecimal() else None
