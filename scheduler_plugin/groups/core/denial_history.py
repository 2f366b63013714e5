"""Recent denials of a primary. A need near the limit dips now and then, which must not restart the wait."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

WINDOW: Final = timedelta(minutes=10)
"""Older denials do not count."""


@dataclass(frozen=True, slots=True)
class DenialHistory:
    """Disjoint spans within the last ``WINDOW`` in which the pod with the UID ``pod`` was denied room, oldest first."""

    pod: str = ""
    spans: tuple[tuple[datetime, datetime], ...] = ()

    def noted(self, pod: str, since: datetime | None, now: datetime) -> DenialHistory:
        """With the state at ``now``: denied since ``since``, or not denied (None). Another pod has no past."""
        past = self.spans if pod == self.pod else ()
        oldest = now - WINDOW
        # The wall clock may have been set back.
        spans = [(max(start, oldest), min(end, now)) for start, end in past if start < now and end > oldest]
        if since is not None:
            # A time in the future comes from a skewed clock and counts as now.
            began = min(max(since, oldest), now)
            began = min([began, *(start for start, end in spans if end >= began)])
            spans = [*(span for span in spans if span[1] < began), (began, now)]
        return DenialHistory(pod, tuple(spans))

    @property
    def length(self) -> timedelta:
        """Sum of the spans."""
        return sum((end - start for start, end in self.spans), timedelta(0))


NO_DENIALS: Final = DenialHistory()
