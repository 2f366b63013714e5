"""The settings in ConfigMaps, parsed with the programs' own parsers (pure)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from agent.config import read_policy
from agent.core.policy import Policy
from protocol.kubernetes.objects import Json, items, name_of, text, texts
from protocol.yaml_text import YamlError
from scheduler_plugin.groups.settings import parse_settings as parse_groups
from scheduler_plugin.injector.settings import parse_settings as parse_injector
from scheduler_plugin.settings.document import CONFIG_KEY, parse_settings
from scripts.autoscale.check.facts import CheckFacts, require
from scripts.autoscale.check.finding import CheckProblem, CheckResult, CheckSection, Level, Verdict, check_of
from scripts.autoscale.check.installed_programs import (
    AGENT,
    GROUPS,
    INJECTOR,
    SCHEDULER,
    by_name,
    installed,
    leading_pod,
    samples_of,
)

check = partial(check_of, CheckSection.SETTINGS)

_FOLLOWED: Final = "autoscale_scheduler_pod_requests_followed"
_IN_FORCE: Final = {
    True: "VM pod requests follow what is reserved",
    False: "VM pod requests stay at their initial values: other schedulers do not see VMs grow",
}


def _follows(facts: CheckFacts) -> bool:
    """The setting of the leading scheduler. Raises ``UnavailableError`` if it does not report it."""
    pod = leading_pod(facts, SCHEDULER)
    metrics = () if pod is None else samples_of(facts, name_of(pod).name)
    samples = [sample.value for sample in metrics if sample.name == _FOLLOWED]
    # A scheduler of an older release has no such metric.
    require(samples, "no scheduler reports whether VM pod requests follow what is reserved")
    return samples[0] == 1.0


def _configured(facts: CheckFacts) -> bool | None:
    """The setting in the ConfigMap; None if it cannot be parsed, which another line reports."""
    workload = installed(facts).get(SCHEDULER)
    name = "" if workload is None else _config_map(workload, SCHEDULER)
    try:
        return parse_settings(texts(by_name(facts.config_maps.value)[name], "data")[CONFIG_KEY]).pod_requests
    except (KeyError, ValueError, YamlError):
        return None


_REFUSED: Final = "_settings_refused"


@dataclass(frozen=True, slots=True)
class Settings:
    """Volume and key of a program's settings, and their parser."""

    volume: str
    key: str
    parse: Callable[[str], object]


SETTINGS: Final[Mapping[str, Settings]] = {
    SCHEDULER: Settings("config", CONFIG_KEY, parse_settings),
    AGENT: Settings("policy", "policy.yaml", partial(read_policy, base=Policy())),
    GROUPS: Settings("config", "settings.yaml", parse_groups),
    INJECTOR: Settings("settings", "settings.yaml", parse_injector),
}
"""By program. The volume names the ConfigMap, which may be the operator's own."""


@check("settings-valid", "the settings are valid", "kubectl -n {namespace} edit configmap {subject}")
def are_valid(facts: CheckFacts) -> CheckResult:
    """The check parses each ConfigMap as its program does. A program ignores an invalid one and keeps its last valid
    settings, but a restarted pod would not start.
    """
    maps = {name_of(config_map).name: texts(config_map, "data") for config_map in facts.config_maps.value}
    named = {program: _config_map(workload, program) for program, workload in installed(facts).items()}
    named = {program: name for program, name in named.items() if name}
    require(named, "no installed program has settings")
    refusals = {name: _wrong(program, name, maps.get(name)) for program, name in named.items()}
    problems = [CheckProblem(name, why) for name, why in refusals.items() if why]
    accepted = [name for name, why in refusals.items() if not why]
    # A corrected ConfigMap may not have reached its pod yet: kubelets take a minute or so to refresh mounted files.
    return CheckResult(", ".join(accepted), problems or _refused_by_programs(facts, named.get(SCHEDULER, SCHEDULER)))


@check(
    "pod-requests",
    "VM pod requests match permits.asPodRequests",
    "kubectl -n {namespace} logs deployment/{subject} -c service | grep pods/resize",
)
def are_as_set(facts: CheckFacts) -> Verdict:
    """With `permits.asPodRequests` VM pods request what is reserved for their VMs, so that other schedulers, quotas and
    cluster autoscalers see it. An API server without `pods/resize` (before 1.33) does not support that. A changed
    ConfigMap takes a minute or two to reach the scheduler.
    """
    follows, configured = _follows(facts), _configured(facts)
    if configured is None or configured is follows:
        return CheckResult(_IN_FORCE[follows])
    what = "on" if configured else "off"
    message = f"permits.asPodRequests is {what}, but {_IN_FORCE[follows]}"
    return CheckProblem(SCHEDULER, message, Level.WARNING)


def _config_map(workload: Json, program: str) -> str:
    """The name of the ConfigMap with the program's settings; empty if it has none."""
    wanted = SETTINGS[program].volume if program in SETTINGS else None
    volumes = items(workload, "spec", "template", "spec", "volumes")
    # An operator may mount another ConfigMap than ours.
    return next((text(volume, "configMap", "name") for volume in volumes if text(volume, "name") == wanted), "")


def _wrong(program: str, name: str, data: Mapping[str, str] | None) -> str:
    """The error in the ConfigMap; empty if none."""
    settings = SETTINGS[program]
    if data is None:
        return f"the ConfigMap {name} of {program} is missing"
    if settings.key not in data:
        return f"the ConfigMap {name} has no {settings.key}"
    try:
        settings.parse(data[settings.key])
    except (ValueError, YamlError) as error:
        return f"{settings.key} in the ConfigMap {name} is invalid: {error}"
    return ""


def _refused_by_programs(facts: CheckFacts, config_map: str) -> list[CheckProblem]:
    """Problems of pods that report that they have rejected their settings."""
    return [
        CheckProblem(config_map, f"pod {pod} still rejects its settings; its log names the fields")
        for pod in facts.metrics
        if any(sample.name.endswith(_REFUSED) and sample.value for sample in samples_of(facts, pod))
    ]
