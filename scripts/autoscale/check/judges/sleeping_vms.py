"""VMs that are configured to sleep, but cannot (pure)."""

from __future__ import annotations

from functools import partial
from typing import Final

from protocol.durations import DurationError, parse_duration
from protocol.kubernetes.objects import Json, annotations_of, child, flag, name_of
from protocol.names import ANNOTATION_CONFIG
from protocol.yaml_text import YamlError, read_yaml
from scripts.autoscale.check.facts import CheckFacts, require
from scripts.autoscale.check.finding import CheckProblem, CheckResult, CheckSection, Level, check_of

check = partial(check_of, CheckSection.VMS)

_LONGEST: Final = 64 * 1024
"""Maximum length of an annotation, which anyone with permission to edit VMs can set."""


def sleeps_after(vm: Json) -> float:
    """Seconds without load after which a VM's annotation lets it sleep; 0 if not set, or invalid.

    >>> sleeps_after({"metadata": {"annotations": {ANNOTATION_CONFIG: '{"sleep": {"after": "15m"}}'}}})
    900.0
    """
    try:
        document = read_yaml(annotations_of(vm).get(ANNOTATION_CONFIG, ""), _LONGEST)
        after = child(document, "sleep").get("after") if isinstance(document, dict) else None
        return parse_duration(str(after)) if after else 0.0
    # The VM's agent reports an invalid annotation.
    except (YamlError, DurationError):
        return 0.0


@check("vms-sleep", "VMs with sleep.after can sleep", "kubectl explain neonvm.spec.extraNetwork; docs/sleep.md")
def can_sleep(facts: CheckFacts) -> CheckResult:
    """A VM with `sleep.after` in its annotation `autoscaling.neon.tech/config` can only sleep if it has an address of
    its own (`spec.extraNetwork.enable`): sessions with its pod would break. Enabling it needs a new pod.
    """
    configured = [vm for vm in facts.vms.value if sleeps_after(vm)]
    require(configured, "no VM has sleep.after in its annotation")
    problems = [
        CheckProblem(
            str(name_of(vm)),
            f"VM {name_of(vm)} sets sleep.after but can never sleep: spec.extraNetwork is not enabled",
            Level.WARNING,
        )
        for vm in configured
        if not flag(vm, "spec", "extraNetwork", "enable")
    ]
    return CheckResult(f"{len(configured)} VMs", problems)
