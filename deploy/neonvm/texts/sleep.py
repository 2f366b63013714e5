"""Reasons for verdicts on frames to a sleeping guest. Pure."""

from __future__ import annotations

from typing import Final

WOKEN_BY: Final = "{who} {why}"

# Wake reasons, after the address and port of the sender

NEW_SESSION: Final = "opened a connection"
SENT_DATA: Final = "sent data"
TOO_MANY_ENDS: Final = "closed its session, and the frame queue is full"

# Reasons to drop, answer or queue a frame

NOT_FOR_US: Final = "not for this guest"
NOT_UNDERSTOOD: Final = "malformed, or neither ARP nor TCP"
ASKED_FOR_MAC: Final = "ARP request"
FOLLOWS_WAKE: Final = "the guest is waking"
NO_ROOM: Final = "frame queue full"
SESSION_RESET: Final = "session reset"
FIRST_END: Final = "session closed; acknowledged when the client repeats it"
SESSION_END: Final = "session closed"
END_AGAIN: Final = "retransmitted end of session"
END_OUT_OF_ORDER: Final = "end of session after a gap in the sequence numbers"
DOES_NOT_WAKE: Final = "sender is in sleep-ignores"
KEEPALIVE: Final = "keepalive probe"
FIRST_KEEPALIVE: Final = "ACK or first keepalive probe; probing the client"
ACKNOWLEDGEMENT: Final = "plain ACK"
IMPOSSIBLE: Final = "invalid TCP flags"
CLOSED_PORT: Final = "port closed"
TOO_MANY_REFUSALS: Final = "port closed; RST rate limit reached"
SCRAPE: Final = "metrics scrape"
