"""Faults of our programs that ``autoscale check`` names: pods, settings, Leases, certificates and clocks."""

from __future__ import annotations

from scripts.autoscale.check.facts import Observed
from scripts.autoscale.check.finding import Level
from scripts.autoscale.check.gathering.trials import NO_AGENT
from tests.scripts.check.changes import (
    Fault,
    added,
    agents_image,
    both,
    bundle,
    certificates,
    changed,
    edited,
    errors,
    held_idly,
    in_list,
    leafs,
    led_by,
    metrics,
    node_lease,
    not_served,
    nothing,
    served,
    server,
    settings,
    settings_of,
    state,
    two_lead,
    waiting,
    without,
    workload,
)
from tests.scripts.check.good_state import (
    HOOK,
    LED,
    NAMESPACE,
    Authority,
    authority,
    encoded,
    leaf,
    page,
    pem,
    runner_secrets,
    secret,
    secrets,
    stamp,
)

KUBE_CONFIG = ("autoscaling-kube-scheduler-config", "scheduler.yaml")
CONFIG = ("autoscaling-scheduler-config", "config.yaml")
WARNING = Level.WARNING

PROGRAM_FAULTS = (
    Fault("programs-installed", f"Deployment autoscaling-scheduler not found in namespace {NAMESPACE}", nothing),
    Fault(
        "programs-images",
        "container service of pod autoscaling-scheduler-0 cannot pull r/x:1: not found",
        state(
            "autoscaling-scheduler-0",
            image="r/x:1",
            state={"waiting": {"reason": "ErrImagePull", "message": "not found"}},
        ),
    ),
    Fault(
        "programs-run",
        "container service restarted 7 times: no settings",
        state(
            "autoscaling-scheduler-0",
            restartCount=7,
            state={"waiting": {"reason": "CrashLoopBackOff"}},
            lastState={"terminated": {"message": "begin\nno settings"}},
        ),
    ),
    Fault(
        "programs-run",
        "restarted 3 times: OOMKilled, exit code 137",
        state(
            "autoscaling-agent-1",
            restartCount=3,
            state={"waiting": {"reason": "CrashLoopBackOff"}},
            lastState={"terminated": {"reason": "OOMKilled", "exitCode": 137}},
        ),
    ),
    Fault(
        "programs-run",
        "container agent cannot start: no configmap",
        state(
            "autoscaling-agent-0",
            state={"waiting": {"reason": "CreateContainerConfigError", "message": "no configmap"}},
        ),
    ),
    Fault(
        "programs-run",
        "not scheduled: 0/2 nodes",
        in_list(
            "pods",
            "neonvm-controller-0",
            lambda pod: pod["status"].update(
                conditions=[{"type": "PodScheduled", "status": "False", "message": "0/2 nodes"}]
            ),
        ),
    ),
    Fault(
        "programs-run",
        "neonvm-controller has 1 of 2 pods ready pod neonvm-controller-1 failed: Evicted",
        both(
            in_list("pods", "neonvm-controller-1", lambda pod: pod["status"].update(phase="Failed", reason="Evicted")),
            in_list("deployments", "neonvm-controller", lambda each: each["status"].update(readyReplicas=1)),
        ),
    ),
    Fault(
        "programs-run",
        "neonvm-controller has 1 of 2 pods ready: too many",
        in_list(
            "deployments",
            "neonvm-controller",
            lambda each: each["status"].update(
                readyReplicas=1, conditions=[{"type": "ReplicaFailure", "message": "too many"}]
            ),
        ),
    ),
    Fault(
        "programs-run",
        "neonvm-network has 1 of 2 pods ready",
        in_list("daemon_sets", "neonvm-network", lambda each: each["status"].update(numberReady=1)),
    ),
    Fault(
        "programs-run",
        "scaled to 0 replicas",
        in_list("deployments", "autoscaling-expander", lambda each: each["spec"].update(replicas=0)),
    ),
    Fault(
        "programs-versions", "0.3.0, the scheduler 0.2.0: upgrade the scheduler first", agents_image("0.3.0"), WARNING
    ),
    Fault("programs-versions", "at most one minor release", agents_image("0.0.9"), WARNING),
    Fault("programs-versions", "this command is 1.0.0", changed(release="1.0.0"), WARNING),
    Fault(
        "programs-alone",
        "Deployment kube-system/autoscale-scheduler of the original project schedules the same pods",
        added("deployments", workload("Deployment", "kube-system", "autoscale-scheduler")),
    ),
    Fault(
        "programs-alone",
        "DaemonSet kube-system/autoscaler-agent of the original project resizes the same VMs",
        added("daemon_sets", workload("DaemonSet", "kube-system", "autoscaler-agent")),
        before=True,
    ),
    Fault(
        "programs-alone",
        f"more than one namespace ({NAMESPACE}, neonvm-system)",
        added("deployments", workload("Deployment", "neonvm-system", "neonvm-controller")),
    ),
    Fault(
        "settings-valid",
        "config.yaml in the ConfigMap autoscaling-scheduler-config is invalid: nodeDefaults.cpu.watermark",
        edited(*CONFIG, "cpu:    {watermark: 0.9", "cpu:    {watermark: 9"),
    ),
    Fault("settings-valid", "policy.yaml in", settings("autoscaling-agent", "policy.yaml", "cpu: {target: 7}")),
    Fault("settings-valid", "is missing", without("config_maps", "autoscaling-agent")),
    Fault(
        "settings-valid",
        "the ConfigMap mine of autoscaling-scheduler is missing",
        settings_of("autoscaling-scheduler", "mine"),
    ),
    Fault("settings-valid", "has no config.yaml", in_list("config_maps", CONFIG[0], lambda each: each["data"].clear())),
    Fault(
        "pod-requests",
        "permits.asPodRequests is on, but VM pod requests stay at their initial values",
        edited(*CONFIG, "nodeDefaults:", "permits: {asPodRequests: true}\nnodeDefaults:"),
        WARNING,
    ),
    Fault(
        "pod-requests",
        "permits.asPodRequests is off, but VM pod requests follow",
        metrics(autoscaling_scheduler_0=page(pod_requests_followed=1.0)),
        WARNING,
    ),
    Fault("settings-valid", "still rejects", metrics(autoscaling_scheduler_0=page(settings_refused=1.0))),
    Fault("extender-configured", "no extender has port 10298", edited(*KUBE_CONFIG, "10298", "9999")),
    Fault(
        "extender-configured", "no profile is named", edited(*KUBE_CONFIG, "schedulerName: autoscale-scheduler", "a: b")
    ),
    Fault("extender-configured", "the extender has no bindVerb", edited(*KUBE_CONFIG, "bindVerb: bind", "a: b")),
    Fault("extender-configured", "ignorable", edited(*KUBE_CONFIG, "ignorable: false", "ignorable: true")),
    Fault("extender-configured", "not nodeCacheCapable", edited(*KUBE_CONFIG, "nodeCacheCapable: true", "a: b")),
    Fault(
        "extender-configured",
        "expects 20",
        edited(*KUBE_CONFIG, "percentageOfNodesToScore: 20", "percentageOfNodesToScore: 5"),
    ),
    Fault("extender-configured", "is not YAML", settings(*KUBE_CONFIG, "{")),
    Fault("extender-configured", "has no scheduler.yaml, or does not exist", without("config_maps", KUBE_CONFIG[0])),
    Fault(
        "extender-in-force",
        "started before its configuration was changed",
        in_list("config_maps", KUBE_CONFIG[0], lambda c: c["metadata"].update(managedFields=[{"time": stamp(5.0)}])),
        WARNING,
    ),
    Fault("scheduler-ready", "has listed the cluster yet", metrics(autoscaling_scheduler_0=page(ready=0.0))),
    Fault("extender-asked", "pod default/p waits for autoscale-scheduler", added("waiting_pods", waiting())),
    Fault("extender-errors", "91 of 143 calls", errors, WARNING),
    Fault(
        "one-permit-writer",
        "saw 3 permits",
        metrics(autoscaling_scheduler_0=page(rival_permit_writes_total=3.0)),
        WARNING,
    ),
    Fault("leases-held", "is held by gone-1, which is not a running pod", led_by("gone-1")),
    Fault("leases-held", "has no holder", led_by("")),
    Fault("leases-held", "last renewed 60 s ago by neonvm-controller-1-ab", led_by("neonvm-controller-1-ab", 60.0)),
    Fault(
        "leases-held",
        "Lease autoscaling-scheduler not found",
        both(without("leases", "autoscaling-scheduler"), metrics(autoscaling_scheduler_0=page(leads=False))),
    ),
    Fault("leases-acted-on", "autoscaling-scheduler-0 of autoscaling-scheduler holds the Lease", held_idly(60.0)),
    Fault(
        "leader-reached", "EndpointSlice autoscaling-scheduler-extender not found", without("endpoint_slices", LED[1])
    ),
    Fault("leader-reached", "has no endpoint", in_list("endpoint_slices", LED[0], lambda each: each.pop("endpoints"))),
    Fault(
        "leader-reached",
        "points to gone-1, which is not a running pod",
        in_list("endpoint_slices", LED[0], lambda each: each["endpoints"][0]["targetRef"].update(name="gone-1")),
    ),
    Fault(
        "webhooks-reached",
        "a dry run created a VM pod without an agent: the API server cannot reach the webhook, port 10293",
        changed(injection=Observed(NO_AGENT)),
    ),
    Fault("leases-one-leader", "autoscaling-scheduler-0 and autoscaling-scheduler-9 of", two_lead),
    Fault("certificates-current", "expired 2 days ago", not_served(leafs((-30.0, -2.0)))),
    Fault("certificates-current", "is not valid for another 2 days", not_served(leafs((2.0, 30.0)))),
    Fault("certificates-current", "expires in 24 hours and was not renewed", not_served(leafs((-29.0, 1.0))), WARNING),
    Fault(
        "certificates-current",
        "contains no certificate",
        not_served(certificates(secret("autoscaling-certificates-x", tls_crt="AAAA"))),
    ),
    Fault("certificates-current", "has no certificate yet", added("secrets", secret("autoscaling-certificates-new"))),
    Fault(
        "certificates-current",
        "tls.crt of the Secret neonvm-runners-controller (CN=neonvm-controller) expired 2 days ago",
        not_served(certificates(*runner_secrets((-90.0, -2.0)))),
    ),
    Fault(
        "certificates-current",
        "the Secret neonvm-runners-agent has no",
        added("secrets", secret("neonvm-runners-agent")),
    ),
    Fault(
        "certificates-signed",
        "tls.crt of the Secret neonvm-runners-controller is not signed",
        not_served(certificates(*secrets()[:2], *runner_secrets(signer=authority()))),
    ),
    Fault(
        "certificates-signed",
        "tls.crt of the Secret autoscaling-certificates-scheduler is not signed",
        leafs((-1.0, 29.0), Authority.make("other")),
    ),
    Fault("certificates-served", "serves a stale certificate", served(pem(authority().leaf(name="old"))), WARNING),
    Fault("certificates-served", "10293 expired 24 hours ago", served(pem(authority().leaf((-9.0, -1.0))))),
    Fault("certificates-served", "serves no certificate", served(b"")),
    Fault("webhooks-trusted", "does not contain the CA", bundle(encoded(Authority.make().certificate))),
    Fault("webhooks-trusted", "is empty", bundle("")),
    Fault(
        "webhooks-trusted",
        "does not verify the certificate of autoscaling-injector:10293: self-signed",
        served(pem(leaf()), why="self-signed"),
    ),
    Fault("webhooks-answer", "failed a test review: 500", changed(reviews={HOOK: Observed("500")})),
    Fault("clock-here", "this machine's clock is 600 s ahead of", server(ahead=600.0)),
    Fault("clock-here", "20 s behind", server(ahead=-20.0), WARNING),
    Fault("clock-nodes", "the clock of node node-1 is 90 s ahead of", node_lease(90.0)),
    Fault("clock-nodes", "10 s behind", node_lease(-10.0), WARNING),
    Fault(
        "clock-programs",
        "the clock of Lease neonvm-controller's holder is 30 s ahead of",
        led_by("neonvm-controller-0-a", ahead=30.0),
        WARNING,
    ),
)
