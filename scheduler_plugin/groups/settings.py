"""The settings of ``autoscale-groups``: a YAML file, followed while the program runs.

Everything but the Lease changes without a restart. A file is accepted or refused as a whole.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from protocol.field_errors import field_message
from protocol.messages import ObjectName
from protocol.runtime.followed_file import SettingsError
from protocol.runtime.kubernetes.lease import LeaseTerms
from protocol.units import Seconds
from protocol.yaml_text import read_yaml
from scheduler_plugin.groups.core.tortoise.configuration import Configuration
from scheduler_plugin.groups.objects.tortoise.global_configuration import ConfigurationError, read_configuration

Name = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=253)]


class LeaseSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """The Lease that decides who acts, and its times in seconds."""

    namespace: Name = "kube-system"
    name: Name = "autoscale-groups"
    duration_seconds: Annotated[int, msgspec.Meta(ge=4, le=120)] = 9
    renew_seconds: Annotated[float, msgspec.Meta(gt=0, le=60)] = 2.0

    def terms(self) -> LeaseTerms:
        """The same as ``LeaseTerms``. Raises ``SettingsError`` if a holder could lose the Lease between renewals."""
        # Two renewals have to fit, or one slow request would lose the Lease.
        if self.renew_seconds * 2 > self.duration_seconds:
            raise SettingsError("lease.renewSeconds: expected at most half of lease.durationSeconds")
        # Fenced: every write is for the version that was judged, and created objects have fixed names.
        name = ObjectName(self.namespace, self.name)
        return LeaseTerms(name, Seconds(float(self.duration_seconds)), Seconds(self.renew_seconds), is_fenced=True)


class GroupsSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Settings of the program. Every group is reconciled after ``interval_seconds`` at the latest.

    ``recommender``: ``agents`` recommends for Hvpas of VMs from what the agents say, whatever an HPA controller and a
    VPA recommender of the cluster say of them. ``tortoise`` is the global configuration of all Tortoises, in upstream's
    names.
    """

    lease: LeaseSettings = LeaseSettings()
    interval_seconds: Annotated[float, msgspec.Meta(ge=1, le=600)] = 15.0
    recommender: Literal["cluster", "agents"] = "cluster"
    tortoise: dict[str, Any] = {}

    def configuration(self) -> Configuration:
        """The Tortoises' global configuration. Raises ``SettingsError``."""
        try:
            return read_configuration(self.tortoise)
        except ConfigurationError as error:
            raise SettingsError(f"tortoise.{error}") from None


def parse_settings(text: str) -> GroupsSettings:
    """Reads the YAML ``text``; an empty one means the defaults. Raises ``SettingsError``."""
    try:
        settings = msgspec.convert(read_yaml(text) or {}, GroupsSettings)
    except (ValueError, RecursionError) as error:
        raise SettingsError(field_message(error)) from None
    # Checked here, so that a bad file is refused as a whole and the old settings stay in force.
    settings.lease.terms()
    settings.configuration()
    return settings
