"""The settings of a Lease whose holder alone acts, as the files of several programs have them."""

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
    """The Lease that decides which replica acts, and its times in seconds; each program has its defaults."""

    name: Name
    duration_seconds: WholeSeconds
    renew_seconds: RenewSeconds

    def terms_in(self, namespace: str) -> LeaseTerms:
        """The terms of the Lease. Raises ``SettingsError`` if a holder could lose it between two renewals."""
        # Two renewals have to fit, or one slow request would lose the Lease.
        if self.renew_seconds * 2 > self.duration_seconds:
            raise SettingsError("lease.renewSeconds: expected at most half of lease.durationSeconds")
        # Fenced: every write is onto the version that was read, and created objects have fixed names.
        name, duration = ObjectName(namespace, self.name), Seconds(float(self.duration_seconds))
        return LeaseTerms(name, duration, Seconds(self.renew_seconds), is_fenced=True)
