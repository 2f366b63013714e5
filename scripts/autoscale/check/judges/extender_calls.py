"""Check that kube-scheduler is configured to ask our extender, asks, and is answered (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from protocol.kubernetes.objects import Json, child, flag, items, name_of, text, texts
from protocol.kubernetes.timestamps import parse_timestamp
from protocol.names import SCHEDULER_NAME
from protocol.runtime.followed_file import SettingsError
from protocol.yaml_text import YamlError, read_yaml
from scheduler_plugin.ledger.sampled_pods import PERCENT
from scheduler_plugin.settings.document import parse_settings
from scripts.autoscale.check.facts import CheckFacts, MetricSample
from scripts.autoscale.check.finding import CheckProblem, CheckResult, Level
from scripts.autoscale.check.installed_programs import KUBE_SCHEDULER, SCHEDULER, installed, pods_of
from scripts.autoscale.check.looks import SiteObservations, Unseen, UnseenError

CONFIG: Final = ("autoscaling-kube-scheduler-config", "scheduler.yaml")
SETTINGS: Final = ("autoscaling-scheduler-config", "config.yaml")
VERBS: Final = ("filterVerb", "prioritizeVerb", "bindVerb", "preemptVerb")
PORT: Final = 10298
CALLS: Final = "autoscale_scheduler_extender_calls_total"
READY: Final = "autoscale_scheduler_ready"
_PERCENT: Final = "percentageOfNodesToScore"
_ENOUGH: Final = 30.0
"""Seconds after which a pod that kube-scheduler has not looked at is a sign that none looks."""


def is_configured(facts: CheckFacts) -> CheckResult:
    """Check that kube-scheduler's configuration has our extender with all that it must have."""
    name, key = CONFIG
    held = next((texts(each, "data") for each in facts.config_maps.value if name_of(each).name == name), None)
    if held is None and SCHEDULER not in installed(facts):
        raise UnseenError(f"{SCHEDULER} is not installed")
    if held is None or key not in held:
        return CheckResult(problems=[CheckProblem(name, f"there is no {key} in a ConfigMap {name}")])
    try:
        document = read_yaml(held[key])
    except YamlError as error:
        return CheckResult(problems=[CheckProblem(name, f"{key} of {name} is not YAML: {error}")])
    found = document if isinstance(document, dict) else {}
    said = [*_configuration(found), *_sampling(found, facts)]
    return CheckResult(
        "filter, prioritize, bind and preempt", [CheckProblem(name, f"{key} of {name}: {each}") for each in said]
    )


def _configuration(document: Json) -> list[str]:
    names = [text(each, "schedulerName") for each in items(document, "profiles")]
    said = [] if SCHEDULER_NAME in names else [f"no profile is named {SCHEDULER_NAME}"]
    ours = [each for each in items(document, "extenders") if _leads_to_us(text(each, "urlPrefix"))]
    if not ours:
        return [*said, f"no extender leads to port {PORT}: kube-scheduler never asks us"]
    extender = ours[0]
    said += [f"the extender has no {verb}" for verb in VERBS if not text(extender, verb)]
    if flag(extender, "ignorable"):
        said.append("the extender is ignorable: pods are bound past the ledger where it does not answer")
    if not flag(extender, "nodeCacheCapable"):
        said.append("the extender is not nodeCacheCapable: refused pods are not woken")
    if text(extender, "urlPrefix").startswith("https:") and not flag(extender, "enableHTTPS"):
        said.append("the extender's URL is https, and enableHTTPS is not true")
    return said


def _sampling(document: Json, facts: CheckFacts) -> list[str]:
    """kube-scheduler may be content with fewer nodes than the service takes for a sample of them."""
    ours = next((each for each in items(document, "profiles") if text(each, "schedulerName") == SCHEDULER_NAME), {})
    percent = ours.get(_PERCENT) or document.get(_PERCENT)
    told = _percent_told(facts)
    if not isinstance(percent, int) or percent >= told:
        return []
    return [
        f"{_PERCENT} is {percent}, and the service is told {told} (extender.{_PERCENT} in {SETTINGS[0]}): "
        "pods may wait although nodes have room"
    ]


def _percent_told(facts: CheckFacts) -> int:
    name, key = SETTINGS
    held = next((texts(each, "data") for each in facts.config_maps.value if name_of(each).name == name), {})
    try:
        return parse_settings(held.get(key, "")).percent_of_nodes
    except SettingsError:
        return PERCENT


def _leads_to_us(url: str) -> bool:
    return url.partition("://")[2].partition("/")[0].endswith(f":{PORT}")


def is_in_force(facts: CheckFacts) -> CheckResult:
    """Check that each kube-scheduler was started after its configuration was last changed: it reads it once."""
    if is_configured(facts).problems:
        raise UnseenError("the configuration has to be put right first")
    changed = [
        at
        for each in facts.config_maps.value
        if name_of(each).name == CONFIG[0]
        for entry in items(each, "metadata", "managedFields")
        if (at := parse_timestamp(text(entry, "time"))) is not None
    ]
    if not changed:
        raise UnseenError(f"the ConfigMap {CONFIG[0]} does not say when it was changed")
    problems = [
        CheckProblem(
            pod, f"kube-scheduler of pod {pod} was started before its configuration was changed", Level.WARNING
        )
        for pod, since in _since(facts)
        if since < max(changed)
    ]
    return CheckResult("", problems)


def _since(facts: CheckFacts) -> list[tuple[str, float]]:
    return [
        (name_of(pod).name, at)
        for pod in pods_of(facts, SCHEDULER)
        for state in items(pod, "status", "containerStatuses")
        if text(state, "name") == KUBE_SCHEDULER
        and (at := parse_timestamp(child(state, "state", "running").get("startedAt"))) is not None
    ]


def is_ready(facts: CheckFacts) -> CheckResult:
    """Check that a scheduler has read the cluster, so that it answers at all."""
    pages = _pages(facts)
    if not any(_total(page, READY) for page in pages.values()):
        said = f"none of {', '.join(sorted(pages))} has read the cluster yet: extender and agents are answered 503"
        return CheckResult(problems=[CheckProblem(next(iter(sorted(pages))), said)])
    return CheckResult()


def is_asked(facts: CheckFacts) -> CheckResult:
    """Check that kube-scheduler has called the extender, and none of our pods waits unseen."""
    pages = _pages(facts)
    unseen = [] if isinstance(facts.waiting_pods, Unseen) else _never_tried(facts.waiting_pods.value, facts.server_now)
    calls = {verb: sum(_total(page, CALLS, verb=verb) for page in pages.values()) for verb in ("filter", "bind")}
    if unseen:
        said = f"pod {unseen[0]} and {len(unseen) - 1} more wait" if len(unseen) > 1 else f"pod {unseen[0]} waits"
        return CheckResult(
            problems=[CheckProblem(unseen[0], f"{said} for {SCHEDULER_NAME}, and no kube-scheduler has looked")]
        )
    if not any(calls.values()):
        raise UnseenError("no pod has come for it since it was started")
    return CheckResult(f"{calls['filter']:.0f} filter and {calls['bind']:.0f} bind calls since it was started")


def has_no_errors(facts: CheckFacts) -> CheckResult:
    """Check that the extender could answer what it was asked."""
    failed = sum(_total(page, CALLS, outcome="error") for page in _pages(facts).values())
    asked = sum(_total(page, CALLS) for page in _pages(facts).values())
    if failed and failed * 10 >= asked:
        said = f"{failed:.0f} of {asked:.0f} calls of kube-scheduler were answered with an error"
        return CheckResult(problems=[CheckProblem("", said, Level.WARNING)])
    return CheckResult(f"{failed:.0f} of {asked:.0f} calls were errors")


def has_no_rival(facts: CheckFacts) -> CheckResult:
    """Check that no other process writes permits."""
    problems = [
        CheckProblem(pod, f"pod {pod} has seen {count:.0f} permits that another process wrote", Level.WARNING)
        for pod, page in _pages(facts).items()
        if (count := _total(page, "autoscale_scheduler_rival_permit_writes_total"))
    ]
    return CheckResult("", problems)


def _pages(facts: CheckFacts) -> dict[str, Sequence[MetricSample]]:
    """The metrics of each scheduler that answers. Raises ``UnseenError``."""
    looks = {name_of(pod).name: facts.metrics.get(name_of(pod).name) for pod in pods_of(facts, SCHEDULER)}
    seen = {pod: look.value for pod, look in looks.items() if isinstance(look, SiteObservations)}
    if not seen:
        unseen = next((look for look in looks.values() if isinstance(look, Unseen)), None)
        raise UnseenError(unseen.why if unseen is not None else f"{SCHEDULER} has no pod")
    return seen


def _total(page: Sequence[MetricSample], name: str, **labels: str) -> float:
    """The sum of all samples of that name with these labels."""
    return sum(each.value for each in page if each.name == name and labels.items() <= each.labels.items())


def _never_tried(pods: Sequence[Json], now: float) -> list[str]:
    """Pods that wait for long without a word of a kube-scheduler."""
    return [
        str(name_of(pod))
        for pod in pods
        if not any(text(each, "type") == "PodScheduled" for each in items(pod, "status", "conditions"))
        and (made := parse_timestamp(text(pod, "metadata", "creationTimestamp"))) is not None
        and now - made > _ENOUGH
        and not items(pod, "spec", "schedulingGates")
    ]
