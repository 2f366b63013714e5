"""The settings in ConfigMaps, read by the parsers of the programs themselves (pure)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from agent.config import read_policy
from agent.core.policy import Policy
from protocol.kubernetes.objects import name_of, texts
from protocol.yaml_text import YamlError
from scheduler_plugin.groups.settings import parse_settings as parse_groups
from scheduler_plugin.injector.settings import parse_settings as parse_injector
from scheduler_plugin.settings.document import CONFIG_KEY, parse_settings
from scripts.autoscale.check.facts import Facts
from scripts.autoscale.check.finding import Found, Problem
from scripts.autoscale.check.installed_programs import AGENT, SCHEDULER, installed
from scripts.autoscale.check.looks import Seen, UnseenError

SCHEDULER_CONFIG: Final = "autoscaling-scheduler-config"
_REFUSED: Final = "_settings_refused"


def _policy(document: str) -> None:
    read_policy(document, Policy())


PARSERS: Final[Mapping[tuple[str, str], Callable[[str], object]]] = {
    (SCHEDULER_CONFIG, CONFIG_KEY): parse_settings,
    ("autoscaling-agent", "policy.yaml"): _policy,
    ("autoscaling-groups-config", "settings.yaml"): parse_groups,
    ("autoscaling-injector-config", "settings.yaml"): parse_injector,
}
"""By ConfigMap and key: what reads it."""

_NEEDED_BY: Final = {SCHEDULER_CONFIG: SCHEDULER, "autoscaling-agent": AGENT}


def are_valid(facts: Facts) -> Found:
    """Whether each of our ConfigMaps holds what its program can use, and whether a program refuses what it has."""
    maps = {name_of(each).name: texts(each, "data") for each in facts.config_maps.value}
    here, problems, good = installed(facts), list[Problem](), list[str]()
    for (name, key), parse in PARSERS.items():
        if name not in maps:
            if _NEEDED_BY.get(name) in here:
                problems.append(Problem(name, f"the ConfigMap {name} of {_NEEDED_BY[name]} is missing"))
        elif key not in maps[name]:
            problems.append(Problem(name, f"the ConfigMap {name} has no {key}"))
        elif why := _refusal(parse, maps[name][key]):
            problems.append(Problem(name, f"{key} of the ConfigMap {name} is refused: {why}"))
        else:
            good.append(name)
    if not good and not problems:
        raise UnseenError(f"there is no ConfigMap {SCHEDULER_CONFIG}")
    return Found(", ".join(good), problems or _refused_by_programs(facts))


def _refusal(parse: Callable[[str], object], document: str) -> str:
    try:
        parse(document)
    except (ValueError, YamlError) as error:
        return str(error)
    return ""


def _refused_by_programs(facts: Facts) -> list[Problem]:
    """A file that is good by now may not have reached its program."""
    return [
        Problem(SCHEDULER_CONFIG, f"pod {pod} still refuses the settings that it was given: its log names the fields")
        for pod, look in facts.metrics.items()
        if isinstance(look, Seen) and any(each.name.endswith(_REFUSED) and each.value for each in look.value)
    ]
