"""kube-scheduler's configuration of our extender, and its calls (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from prometheus_client.samples import Sample

from protocol.kubernetes.conditions import condition_of
from protocol.kubernetes.objects import Json, child, flag, items, name_of, text, texts
from protocol.kubernetes.timestamps import parse_timestamp
from protocol.names import SCHEDULER_NAME
from protocol.runtime.followed_file import SettingsError
from protocol.yaml_text import YamlError, read_yaml
from scheduler_plugin.ledger.accounts.waiting_pods import PERCENT
from scheduler_plugin.settings.document import parse_settings
from scripts.autoscale.check.facts import CheckFacts, Unavailable, UnavailableError, observed_values, require
from scripts.autoscale.check.finding import CheckProblem, CheckResult, CheckSection, Level, Verdict, check_of
from scripts.autoscale.check.installed_programs import KUBE_SCHEDULER, SCHEDULER, by_name, installed, pods_of

check = partial(check_of, CheckSection.SCHEDULER)

CONFIG: Final = ("autoscaling-kube-scheduler-config", "scheduler.yaml")
SETTINGS: Final = ("autoscaling-scheduler-config", "config.yaml")
VERBS: Final = ("filterVerb", "prioritizeVerb", "bindVerb", "preemptVerb")
PORT: Final = 10298
CALLS: Final = "autoscale_scheduler_extender_calls_total"
READY: Final = "autoscale_scheduler_ready"
_PERCENT: Final = "percentageOfNodesToScore"
_UNTRIED: Final = 30.0
"""Seconds after which a pod that kube-scheduler has not tried to schedule is a sign that it is not working."""


@check(
    "extender-configured",
    "kube-scheduler is configured to call our extender",
    "kubectl -n {namespace} edit configmap {subject}; kubectl -n {namespace} rollout restart"
    " deployment/autoscaling-scheduler",
)
def is_configured(facts: CheckFacts) -> Verdict:
    """kube-scheduler's configuration must name our extender with all four verbs and must not make it `ignorable`:
    otherwise kube-scheduler binds pods without the ledger and overcommits nodes.
    """
    name, key = CONFIG
    config_map = by_name(facts.config_maps.value).get(name)
    if config_map is None and SCHEDULER not in installed(facts):
        raise UnavailableError(f"{SCHEDULER} is not installed")
    data = texts(config_map or {}, "data")
    if key not in data:
        return CheckProblem(name, f"the ConfigMap {name} has no {key}, or does not exist")
    try:
        document = read_yaml(data[key])
    except YamlError as error:
        return CheckProblem(name, f"{key} in the ConfigMap {name} is not YAML: {error}")
    configuration = document if isinstance(document, dict) else {}
    errors = [*_configuration(configuration), *_sampling(configuration, facts)]
    return CheckResult(
        "filter, prioritize, bind and preempt",
        [CheckProblem(name, f"{key} in the ConfigMap {name}: {error}") for error in errors],
    )


def _configuration(document: Json) -> list[str]:
    names = [text(profile, "schedulerName") for profile in items(document, "profiles")]
    errors = [] if SCHEDULER_NAME in names else [f"no profile is named {SCHEDULER_NAME}"]
    hosts = [
        (text(candidate, "urlPrefix").partition("://")[2], candidate) for candidate in items(document, "extenders")
    ]
    ours = [candidate for host, candidate in hosts if host.partition("/")[0].endswith(f":{PORT}")]
    if not ours:
        return [*errors, f"no extender has port {PORT}: kube-scheduler never calls ours"]
    extender = ours[0]
    errors += [f"the extender has no {verb}" for verb in VERBS if not text(extender, verb)]
    if flag(extender, "ignorable"):
        errors.append("the extender is ignorable: kube-scheduler binds pods without it if it does not respond")
    if not flag(extender, "nodeCacheCapable"):
        errors.append("the extender is not nodeCacheCapable: rejected pods are not retried when room appears")
    if text(extender, "urlPrefix").startswith("https:") and not flag(extender, "enableHTTPS"):
        errors.append("the extender's URL is https, but enableHTTPS is not true")
    return errors


def _sampling(document: Json, facts: CheckFacts) -> list[str]:
    """The problem with ``percentageOfNodesToScore``, if there is one."""
    ours = next(
        (profile for profile in items(document, "profiles") if text(profile, "schedulerName") == SCHEDULER_NAME), {}
    )
    # A profile's own percentage takes precedence over the configuration's.
    percent = ours[_PERCENT] if ours.get(_PERCENT) is not None else document.get(_PERCENT)
    service_percent = _expected_percent(facts)
    # With a lower percentage kube-scheduler samples fewer nodes than the service expects. With zero, as if unset, it
    # chooses the percentage itself.
    if not isinstance(percent, int) or percent == 0 or percent >= service_percent:
        return []
    return [
        f"{_PERCENT} is {percent}, but the service expects {service_percent} (extender.{_PERCENT} in {SETTINGS[0]}): "
        "pods may wait although nodes have room"
    ]


def _expected_percent(facts: CheckFacts) -> int:
    name, key = SETTINGS
    config_map = by_name(facts.config_maps.value).get(name, {})
    try:
        return parse_settings(texts(config_map, "data").get(key, "")).percent_of_nodes
    except SettingsError:
        return PERCENT


@check(
    "extender-in-force",
    "kube-scheduler uses the current configuration",
    "kubectl -n {namespace} rollout restart deployment/autoscaling-scheduler",
)
def is_in_force(facts: CheckFacts) -> CheckResult:
    """kube-scheduler reads its configuration only when it starts, and the configuration has changed since."""
    # A restart does not help until the configuration is fixed.
    if is_configured.result(facts).problems:
        raise UnavailableError("fix the configuration first")
    changed = [
        at
        for config_map in facts.config_maps.value
        if name_of(config_map).name == CONFIG[0]
        # The only timestamps of changes that a ConfigMap has.
        for entry in items(config_map, "metadata", "managedFields")
        if (at := parse_timestamp(text(entry, "time"))) is not None
    ]
    require(changed, f"the ConfigMap {CONFIG[0]} has no timestamp of its last change")
    problems = [
        CheckProblem(pod, f"kube-scheduler in pod {pod} started before its configuration was changed", Level.WARNING)
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


@check(
    "scheduler-ready",
    "the scheduler has listed the cluster",
    "kubectl -n {namespace} logs deployment/autoscaling-scheduler -c service --tail=20",
)
def is_ready(facts: CheckFacts) -> Verdict:
    """Until the scheduler has listed nodes, pods and VMs, it decides nothing: pods wait and no VM grows. `/readyz`
    names the missing kind, and the log the reason (403: permissions; 404: CRDs).
    """
    pages = _pages(facts)
    if not any(_total(page, READY) for page in pages.values()):
        message = (
            f"no scheduler has listed the cluster yet ({', '.join(sorted(pages))}): kube-scheduler and agents get 503"
        )
        return CheckProblem(next(iter(sorted(pages))), message)
    return CheckResult()


@check(
    "extender-asked",
    "kube-scheduler calls the extender",
    "kubectl -n {namespace} logs deployment/autoscaling-scheduler -c kube-scheduler --tail=20",
)
def extender_called(facts: CheckFacts) -> Verdict:
    """Pods with the scheduler name `autoscale-scheduler` have waited half a minute without an attempt by
    kube-scheduler: it is not running, is not the leader, or has no profile of that name.
    """
    pages = _pages(facts)
    untried = (
        [] if isinstance(facts.waiting_pods, Unavailable) else _never_tried(facts.waiting_pods.value, facts.server_now)
    )
    calls = {verb: sum(_total(page, CALLS, verb=verb) for page in pages.values()) for verb in ("filter", "bind")}
    if untried:
        message = (
            f"pod {untried[0]} and {len(untried) - 1} more wait" if len(untried) > 1 else f"pod {untried[0]} waits"
        )
        return CheckProblem(untried[0], f"{message} for {SCHEDULER_NAME}, but no kube-scheduler has made an attempt")
    # Counters are reset when the program starts, so zero proves nothing.
    require(any(calls.values()), "no calls since the scheduler started")
    return CheckResult(f"{calls['filter']:.0f} filter and {calls['bind']:.0f} bind calls since the scheduler started")


@check(
    "extender-errors",
    "extender calls succeed",
    "kubectl -n {namespace} logs deployment/autoscaling-scheduler -c service --tail=50",
)
def has_no_errors(facts: CheckFacts) -> Verdict:
    """At least a tenth of kube-scheduler's calls have failed since the scheduler started."""
    failed = sum(_total(page, CALLS, outcome="error") for page in _pages(facts).values())
    calls = sum(_total(page, CALLS) for page in _pages(facts).values())
    # Some errors are normal while a scheduler starts or leadership changes.
    if failed and failed * 10 >= calls:
        message = f"{failed:.0f} of {calls:.0f} calls from kube-scheduler failed"
        return CheckProblem("", message, Level.WARNING)
    return CheckResult(f"{failed:.0f} of {calls:.0f} calls failed")


@check(
    "one-permit-writer",
    "no other process writes permits",
    "kubectl get pods -A -l app.kubernetes.io/name=autoscaling-scheduler; run only one scheduler",
)
def has_no_rival(facts: CheckFacts) -> CheckResult:
    """Another scheduler or a user has written VM permits since this scheduler started."""
    problems = [
        CheckProblem(pod, f"pod {pod} saw {count:.0f} permits written by another process", Level.WARNING)
        for pod, page in _pages(facts).items()
        if (count := _total(page, "autoscale_scheduler_rival_permit_writes_total"))
    ]
    return CheckResult("", problems)


def _pages(facts: CheckFacts) -> dict[str, Sequence[Sample]]:
    """The metrics of each scheduler that responds. Raises ``UnavailableError``."""
    pods = {name_of(pod).name for pod in pods_of(facts, SCHEDULER)}
    return observed_values(
        {pod: observation for pod, observation in facts.metrics.items() if pod in pods}, f"{SCHEDULER} has no pod"
    )


def _total(page: Sequence[Sample], name: str, **labels: str) -> float:
    """The sum of all samples of that name with these labels."""
    return sum(sample.value for sample in page if sample.name == name and labels.items() <= sample.labels.items())


def _never_tried(pods: Sequence[Json], now: float) -> list[str]:
    """Pods that no kube-scheduler has tried to schedule for some time."""
    return [
        str(name_of(pod))
        for pod in pods
        # The first attempt sets this condition, even if it fails.
        if not condition_of(pod, "PodScheduled")
        and (made := parse_timestamp(text(pod, "metadata", "creationTimestamp"))) is not None
        and now - made > _UNTRIED
        # A pod with scheduling gates is not queued.
        and not items(pod, "spec", "schedulingGates")
    ]
