"""Whether pods of VMs request what their VMs have reserved, and whether that is as it was asked for (B.10, pure)."""

from __future__ import annotations

from typing import Final

from protocol.kubernetes.objects import name_of, texts
from protocol.yaml_text import YamlError
from scheduler_plugin.settings.document import CONFIG_KEY, parse_settings
from scripts.autoscale.check.facts import Facts
from scripts.autoscale.check.finding import Found, Level, Problem
from scripts.autoscale.check.installed_programs import SCHEDULER, leading_pod
from scripts.autoscale.check.judges.settings_texts import config_map_of
from scripts.autoscale.check.looks import Seen, UnseenError

_FOLLOWED: Final = "autoscale_scheduler_pod_requests_followed"
_IN_FORCE: Final = {
    True: "requests of pods follow their VMs",
    False: "requests of pods stay as they were made: others do not see VMs grow",
}


def are_as_set(facts: Facts) -> Found:
    """What is in force, and whether the settings say the same."""
    follows, wanted = _follows(facts), _wanted(facts)
    if wanted is None or wanted is follows:
        return Found(_IN_FORCE[follows])
    what = "on" if wanted else "off"
    said = f"permits.asPodRequests is {what}, and {_IN_FORCE[follows]}"
    return Found(problems=[Problem(SCHEDULER, said, Level.WARNING)])


def _follows(facts: Facts) -> bool:
    """What the scheduler that leads says. Raises ``UnseenError`` where it says nothing."""
    pod = leading_pod(facts, SCHEDULER)
    look = None if pod is None else facts.metrics.get(name_of(pod).name)
    found = [each.value for each in look.value if each.name == _FOLLOWED] if isinstance(look, Seen) else []
    if not found:
        raise UnseenError("no scheduler says whether requests of pods follow their VMs")
    return found[0] == 1.0


def _wanted(facts: Facts) -> bool | None:
    """What the ConfigMap says; None where it cannot be read, which another line says."""
    name = config_map_of(facts, SCHEDULER)
    data = next((texts(each, "data") for each in facts.config_maps.value if name_of(each).name == name), {})
    try:
        return parse_settings(data[CONFIG_KEY]).pod_requests
    except (KeyError, ValueError, YamlError):
        return None
