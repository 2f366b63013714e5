"""What happens when the settings' file changes: new settings are in force at once, a refusal changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from protocol.runtime.followed_file import FileRefusedError
from scheduler_plugin.settings.document import SchedulerSettings


class SettingsReport(Protocol):
    """Receiver of reload outcomes."""

    def settings_accepted(self, generation: int) -> None:
        """New settings are in force."""

    def settings_refused(self, reason: str) -> None:
        """A new content was refused; the old settings stay."""


@dataclass(frozen=True, slots=True)
class SettingsFollower:
    """See ``protocol.runtime.followed_file.Follower``; ``use`` puts settings in force."""

    use: Callable[[SchedulerSettings], None]
    report: SettingsReport

    def accept(self, value: SchedulerSettings, generation: int) -> None:
        """Puts new settings in force."""
        self.use(value)
        self.report.settings_accepted(generation)

    def refuse(self, error: FileRefusedError) -> None:
        """Tells of a refusal."""
        self.report.settings_refused(str(error))
