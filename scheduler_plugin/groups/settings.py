"""Settings of ``autoscale-groups``: a YAML file, reloaded when it changes.

All settings except the Lease's apply without a restart. A file with an invalid value is refused as a whole.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from protocol.field_errors import field_message
from protocol.runtime.followed_file import SettingsError
from protocol.runtime.kubernetes.lease import LeaseTerms
from protocol.yaml_text import read_yaml
from scheduler_plugin.groups.core.tortoise.configuration import Configuration
from scheduler_plugin.groups.objects.tortoise.global_configuration import ConfigurationError, read_configuration
from scheduler_plugin.lease_settings import LeaseSettings, Name, RenewSeconds, WholeSeconds


class GroupsLease(LeaseSettings, frozen=True):
    """The Lease of this program."""

    namespace: Name = "kube-system"
    name: Name = "autoscale-groups"
    duration_seconds: WholeSeconds = 9
    renew_seconds: RenewSeconds = 2.0

    def terms(self) -> LeaseTerms:
        """See ``terms_in``."""
        return self.terms_in(self.namespace)


class GroupsSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Settings of the program. Every group is reconciled at least every ``interval_seconds``.

    With the ``recommender`` ``agents``, recommendations for Hvpas of VMs follow from agents' reports, and override the
    cluster's HPA controller and VPA recommender. ``tortoise`` is the global configuration of Tortoises, with upstream's
    names.
    """

    lease: GroupsLease = GroupsLease()
    interval_seconds: Annotated[float, msgspec.Meta(ge=1, le=600)] = 15.0
    recommender: Literal["cluster", "agents"] = "cluster"
    tortoise: dict[str, Any] = {}

    def configuration(self) -> Configuration:
        """The global configuration of Tortoises. Raises ``SettingsError``."""
        try:
            return read_configuration(self.tortoise)
        except ConfigurationError as error:
            raise SettingsError(f"tortoise.{error}") from None


def parse_settings(text: str) -> GroupsSettings:
    """Parse the YAML ``text``; empty means the defaults. Raises ``SettingsError``."""
    try:
        settings = msgspec.convert(read_yaml(text) or {}, GroupsSettings)
    except (ValueError, RecursionError) as error:
        raise SettingsError(field_message(error)) from None
    # Check these too, so that an invalid file is refused as a whole.
    settings.lease.terms()
    settings.configuration()
    return settings
