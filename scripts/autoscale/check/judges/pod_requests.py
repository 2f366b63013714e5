"""Requests of VMs' pods: they follow what their VMs have reserved, if the settings ask for it (B.10, pure)."""

from __future__ import annotations

from typing import Final

from protocol.kubernetes.objects import name_of, texts
from protocol.yaml_text import YamlError
from scheduler_plugin.settings.document import CONFIG_KEY, parse_settings
from scripts.autoscale.check.facts import CheckFacts
from scripts.autoscale.check.finding import CheckProblem, CheckResult, Level
from scripts.autoscale.check.installed_programs import SCHEDULER, leading_pod
from scripts.autoscale.check.judges.settings_texts import config_map_of
from scripts.autoscale.check.looks import SiteObservations, UnseenError

_FOLLOWED: Final = "autoscale_scheduler_pod_requests_followed"
_IN_FORCE: Final = {
    True: "requests of pods follow their VMs",
    False: "requests of pods stay as they were made: others do not see VMs grow",
}


def are_as_set(facts: CheckFacts) -> CheckResult:
    """Compare the effective setting with the configured one."""
    follows, wanted = _follows(facts), _wanted(facts)
    # A setting that cannot be read is reported on another line; this one still shows what is in force.
    if wanted is None or wanted is follows:
        return CheckResult(_IN_FORCE[follows])
    what = "on" if wanted else "off"
    message = f"permits.asPodRequests is {what}, and {_IN_FORCE[follows]}"
    return CheckResult(problems=[CheckProblem(SCHEDULER, message, Level.WARNING)])


def _follows(facts: CheckFacts) -> bool:
    """The leading scheduler's setting. Raises ``UnseenError`` if it does not report it."""
    pod = leading_pod(facts, SCHEDULER)
    look = None if pod is None else facts.metrics.get(name_of(pod).name)
    samples = (
        [sample.value for sample in look.value if sample.name == _FOLLOWED]
        if isinstance(look, SiteObservations)
        else []
    )
    # A scheduler of an older release has no such metric.
    if not samples:
        raise UnseenError("no scheduler says whether requests of pods follow their VMs")
    return samples[0] == 1.0


def _wanted(facts: CheckFacts) -> bool | None:
    """The ConfigMap's setting; None if it cannot be decoded, which another line reports."""
    name = config_map_of(facts, SCHEDULER)
    data = next(
        (texts(config_map, "data") for config_map in facts.config_maps.value if name_of(config_map).name == name), {}
    )
    try:
        return parse_settings(data[CONFIG_KEY]).pod_requests
    except (KeyError, ValueError, YamlError):
        return None
