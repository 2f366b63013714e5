"""Lease settings, shared by the settings files of several programs."""

from __future__ import annotations

from typing import Annotated

import msgspec

from protocol.messages import ObjectName
from protocol.runtime.followed_file import SettingsError
from protocol.runtime.kubernetes.lease import LeaseTerms
from protocol.units import Seconds

Name = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=253)]
WholeSeconds = Annotated[int, msgspec.Meta(ge=4, le=120)]
RenewSeconds = Annotated[float, msgspec.Meta(gt=0, le=60)]


class LeaseSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """The Lease of the active replica, with times in seconds; each program has its defaults."""

    name: Name
    duration_seconds: WholeSeconds
    renew_seconds: RenewSeconds

    def terms_in(self, namespace: str) -> LeaseTerms:
        """The Lease's terms. Raises ``SettingsError`` if a holder could lose it between two renewals."""
        # Otherwise one slow renewal would lose the Lease.
        if self.renew_seconds * 2 > self.duration_seconds:
            raise SettingsError("lease.renewSeconds: expected at most half of lease.durationSeconds")
        # Fenced: writes carry the resourceVersion that was read, and created objects have fixed names.
        name, duration = ObjectName(namespace, self.name), Seconds(float(self.duration_seconds))
        return LeaseTerms(name, duration, Seconds(self.renew_seconds), is_fenced=True)
