"""Our programs, their settings, and how kube-scheduler asks them: lines of ``autoscale check`` (pure)."""

from __future__ import annotations

from typing import Final

from scripts.autoscale.check.finding import Check, CheckSection, When
from scripts.autoscale.check.judges import extender_calls, settings_texts, workloads

CHECKS: Final = (
    Check(
        "programs-installed",
        CheckSection.PARTS,
        "the programs are installed",
        workloads.has_scheduler,
        "There is no scheduler in the namespace. An installation elsewhere is found by itself where it is the only"
        " one.",
        "kubectl get deployments --all-namespaces -l app.kubernetes.io/name=autoscaling-scheduler",
    ),
    Check(
        "programs-images",
        CheckSection.PARTS,
        "their images can be pulled",
        workloads.images_are_there,
        "A container waits for its image: the name or tag is wrong, the registry does not answer, or it wants"
        " credentials.",
        "kubectl -n {namespace} describe pod {subject}",
    ),
    Check(
        "programs-run",
        CheckSection.PARTS,
        "every program has its pods",
        workloads.programs_run,
        "A pod has no node, its program keeps ending (its last words are shown), or fewer are ready than wanted.",
        "kubectl -n {namespace} get pods; kubectl -n {namespace} logs {subject} --all-containers --previous",
    ),
    Check(
        "programs-versions",
        CheckSection.PARTS,
        "their versions go together",
        workloads.versions_fit,
        "The scheduler is upgraded first: agents may be one minor release behind it, never ahead. The label"
        " `app.kubernetes.io/version` is compared, or the tag of the image.",
        "Upgrade the scheduler first, then the agents; VM pods get their new sidecar when they are created again.",
    ),
    Check(
        "programs-alone",
        CheckSection.PARTS,
        "no other autoscaler is at work",
        workloads.alone,
        "The original project's scheduler and agents serve the same pods and VMs, and two controllers of VMs run each"
        " VM twice. One of each has to go (operations-cluster.md, taking over).",
        "kubectl scale {subject} --replicas=0",
        When.ALWAYS,
    ),
    Check(
        "settings-valid",
        CheckSection.SETTINGS,
        "the settings can be used",
        settings_texts.are_valid,
        "The ConfigMaps were read by the programs' own parsers. What is refused changes nothing: the last good"
        " settings stay in force, and a pod that restarts does not start.",
        "kubectl -n {namespace} edit configmap {subject}",
    ),
    Check(
        "pod-requests",
        CheckSection.SETTINGS,
        "VM pod requests match permits.asPodRequests",
        settings_texts.are_as_set,
        "With `permits.asPodRequests` pods of VMs request what is reserved for their VMs, so that other schedulers,"
        " quotas and cluster autoscalers see them grow. An API server without `pods/resize` (before 1.33) cannot do"
        " that, and a ConfigMap takes a minute or two to reach the scheduler.",
        "kubectl -n {namespace} logs deployment/{subject} -c service | grep pods/resize",
    ),
    Check(
        "extender-configured",
        CheckSection.SCHEDULER,
        "kube-scheduler is configured to ask us",
        extender_calls.is_configured,
        "The configuration of kube-scheduler must name our extender with all four verbs, and must not ignore it:"
        " otherwise pods are bound past the ledger, and nodes are promised twice.",
        "kubectl -n {namespace} edit configmap {subject}; kubectl -n {namespace} rollout restart"
        " deployment/autoscaling-scheduler",
    ),
    Check(
        "extender-in-force",
        CheckSection.SCHEDULER,
        "it was started with that configuration",
        extender_calls.is_in_force,
        "kube-scheduler reads its configuration once. It was changed since this one was started.",
        "kubectl -n {namespace} rollout restart deployment/autoscaling-scheduler",
    ),
    Check(
        "scheduler-ready",
        CheckSection.SCHEDULER,
        "the scheduler has read the cluster",
        extender_calls.is_ready,
        "Until nodes, pods and VMs are listed nothing is decided: pods wait and no VM grows. `/readyz` says which"
        " kind is missing, the log says why (403: permissions; 404: definitions).",
        "kubectl -n {namespace} logs deployment/autoscaling-scheduler -c service --tail=20",
    ),
    Check(
        "extender-asked",
        CheckSection.SCHEDULER,
        "kube-scheduler asks",
        extender_calls.is_asked,
        "Pods ask for `autoscale-scheduler`, and no kube-scheduler has looked at one for half a minute: it does not"
        " run, does not lead, or has no profile of that name.",
        "kubectl -n {namespace} logs deployment/autoscaling-scheduler -c kube-scheduler --tail=20",
    ),
    Check(
        "extender-errors",
        CheckSection.SCHEDULER,
        "its calls are answered",
        extender_calls.has_no_errors,
        "A tenth of kube-scheduler's calls or more were answered with an error since the scheduler was started.",
        "kubectl -n {namespace} logs deployment/autoscaling-scheduler -c service --tail=50",
    ),
    Check(
        "one-permit-writer",
        CheckSection.SCHEDULER,
        "no other process writes permits",
        extender_calls.has_no_rival,
        "Another scheduler, or a person, wrote permits of VMs since this scheduler was started.",
        "kubectl get pods -A -l app.kubernetes.io/name=autoscaling-scheduler; leave one scheduler running",
    ),
)
