"""A fault for each line of ``autoscale check``, and the words by which that line names it."""

from __future__ import annotations

from scripts.autoscale.check.facts import Right, SiteObservations, Unseen, Webhook
from scripts.autoscale.check.finding import Level
from scripts.autoscale.check.gathering.trials import NO_AGENT
from tests.scripts.check.changes import (
    EMULATED,
    LIMITED,
    OPEN,
    SIDECAR,
    Fault,
    added,
    agents_image,
    both,
    bundle,
    certificates,
    changed,
    deferred,
    drop_slot_size,
    edited,
    errors,
    heard,
    held_idly,
    in_list,
    kube_scheduler,
    kubelet,
    kubelet_has,
    leafs,
    leaves_two_unready,
    led_by,
    metrics,
    migration,
    no_answer,
    no_devices,
    no_network,
    node_lease,
    not_ready,
    not_served,
    nothing,
    of_account,
    of_pod,
    of_vm,
    own,
    permit,
    placed,
    refused,
    restarts,
    server,
    serves_no_pods,
    settings,
    settings_of,
    shown,
    state,
    two_lead,
    waiting,
    without,
    workload,
    yet_to_come,
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
SCHEDULER = f"{NAMESPACE}:autoscaling-scheduler"
WARNING = Level.WARNING
NO_QUOTA_FOR_CLASS = "insufficient quota to match these scopes: [{PriorityClass In [system-node-critical]}]"

FAULTS = (
    Fault("api-answers", "cannot connect", no_answer),
    Fault("api-looks", "list secrets: slow", changed(secrets=Unseen("list secrets: slow", has_failed=True)), WARNING),
    Fault("api-version", "1.30 is too old: 1.31", both(kube_scheduler("v1.30.0"), server("v1.30.9"))),
    Fault("api-version", "neonvm-controller needs Kubernetes 1.33", both(kube_scheduler("v1.32.0"), server("v1.32.9"))),
    Fault("api-version", "1.99 is newer than", both(kube_scheduler("v1.99.0"), server("v1.99.0+k3s1")), WARNING),
    Fault(
        "api-addresses",
        "is IPv6 (the API server's Service has fd00:10:96::1)",
        in_list("api_services", "kubernetes", lambda each: each["spec"].update(clusterIP="fd00:10:96::1")),
        before=True,
    ),
    Fault("kube-scheduler-version", "1.37, the API server is 1.36: kube-scheduler must not", kube_scheduler("v1.37.0")),
    Fault("kube-scheduler-version", "at most one minor version older", kube_scheduler("v1.34.1"), WARNING),
    Fault(
        "rights-install",
        "you may not create customresourcedefinitions.apiextensions.k8s.io",
        own(Right("create", "apiextensions.k8s.io", "customresourcedefinitions")),
        before=True,
    ),
    Fault(
        "rights-install",
        "you may not create validatingadmissionpolicies.admissionregistration.k8s.io",
        own(Right("create", "admissionregistration.k8s.io", "validatingadmissionpolicies")),
        before=True,
    ),
    Fault(
        "rights-install",
        "you may not create namespaces",
        both(yet_to_come, own(Right("create", "", "namespaces"))),
        before=True,
    ),
    Fault(
        "rights-install",
        "you may not patch rolebindings.rbac.authorization.k8s.io in kube-system",
        own(Right("patch", "rbac.authorization.k8s.io", "rolebindings", "kube-system")),
        before=True,
    ),
    Fault("rights-commands", "you may not get pods/portforward", own(Right("get", "", "pods/portforward"))),
    Fault(
        "rights-programs",
        f"the service account {SCHEDULER} may not patch virtualmachines.vm.neon.tech",
        of_account(SCHEDULER, Right("patch", "vm.neon.tech", "virtualmachines")),
    ),
    Fault(
        "rights-programs",
        f"the service account {NAMESPACE}:autoscaling-agent may not create subjectaccessreviews.authorization.k8s.io",
        of_account(f"{NAMESPACE}:autoscaling-agent", Right("create", "authorization.k8s.io", "subjectaccessreviews")),
    ),
    Fault(
        "definitions-in-the-way",
        "virtualmachines.vm.neon.tech already exists and lacks spec.guest.memorySlotSize",
        in_list("definitions", "virtualmachines.vm.neon.tech", drop_slot_size),
        WARNING,
        before=True,
    ),
    Fault(
        "definitions-served",
        "virtualmachinemigrations.vm.neon.tech is not installed",
        without("definitions", "virtualmachinemigrations.vm.neon.tech"),
    ),
    Fault(
        "definitions-served",
        "does not serve v1",
        in_list("definitions", "virtualmachines.vm.neon.tech", lambda d: d["spec"]["versions"][0].update(served=False)),
    ),
    Fault(
        "definitions-served",
        "is not Established: conflict",
        in_list(
            "definitions",
            "hvpas.autoscaling.k8s.io",
            lambda d: d.update(
                status={"conditions": [{"type": "Established", "status": "False", "message": "conflict"}]}
            ),
        ),
    ),
    Fault(
        "definitions-fields",
        "virtualmachines.vm.neon.tech lacks spec.guest.memorySlotSize",
        in_list("definitions", "virtualmachines.vm.neon.tech", drop_slot_size),
    ),
    Fault(
        "definitions-fields",
        "lacks the status subresource",
        in_list("definitions", "virtualmachines.vm.neon.tech", lambda d: d["spec"]["versions"][0].pop("subresources")),
    ),
    Fault("namespace-exists", f"no namespace {NAMESPACE}", without("namespaces", NAMESPACE)),
    Fault(
        "namespace-exists",
        "is being deleted",
        in_list("namespaces", NAMESPACE, lambda each: each["metadata"].update(deletionTimestamp=stamp(1.0))),
    ),
    Fault(
        "namespace-pod-security",
        'neonvm-network: violates PodSecurity "restricted:latest"',
        refused("neonvm-network", 'violates PodSecurity "restricted:latest": host namespaces'),
    ),
    Fault(
        "namespace-pod-security",
        f"neonvm-devices in default ({NAMESPACE} does not exist yet): violates PodSecurity",
        both(yet_to_come, refused("neonvm-devices", 'violates PodSecurity "baseline:latest": hostPath volumes')),
        before=True,
    ),
    Fault(
        "namespace-quota", "exceeded quota: few", refused("autoscaling-scheduler", "exceeded quota: few, used: pods=1")
    ),
    Fault(
        "namespace-quota",
        "maximum memory usage per Container",
        refused("autoscaling-agent", "maximum memory usage per Container is 64Mi, but limit is 192Mi"),
        before=True,
    ),
    Fault("namespace-quota", f"agent: {NO_QUOTA_FOR_CLASS}", refused("autoscaling-agent", NO_QUOTA_FOR_CLASS)),
    Fault(
        "namespace-quota",
        f"agent in default ({NAMESPACE} does not exist yet): {NO_QUOTA_FOR_CLASS}",
        both(yet_to_come, refused("autoscaling-agent", NO_QUOTA_FOR_CLASS)),
        WARNING,
        before=True,
    ),
    Fault(
        "namespace-admission",
        'admission webhook "guard"',
        refused("autoscaling-agent", 'admission webhook "guard" denied'),
    ),
    Fault("programs-installed", f"no Deployment autoscaling-scheduler in namespace {NAMESPACE}", nothing),
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
        "programs-versions",
        "0.3.0, the scheduler 0.2.0: upgrade the scheduler first",
        agents_image("0.3.0"),
        WARNING,
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
    Fault(
        "extender-errors",
        "91 of 143 calls",
        errors,
        WARNING,
    ),
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
        "there is no Lease autoscaling-scheduler",
        both(without("leases", "autoscaling-scheduler"), metrics(autoscaling_scheduler_0=page(leads=False))),
    ),
    Fault("leases-acted-on", "autoscaling-scheduler-0 of autoscaling-scheduler holds the Lease", held_idly(60.0)),
    Fault("leader-reached", "there is no EndpointSlice autoscaling-scheduler-extender", without("slices", LED[1])),
    Fault("leader-reached", "has no endpoint", in_list("slices", LED[0], lambda each: each.pop("endpoints"))),
    Fault(
        "leader-reached",
        "points to gone-1, which is not a running pod",
        in_list("slices", LED[0], lambda each: each["endpoints"][0]["targetRef"].update(name="gone-1")),
    ),
    Fault(
        "webhooks-reached",
        "a dry run created a VM pod without an agent: the API server cannot reach the webhook, port 10293",
        changed(injection=SiteObservations(NO_AGENT)),
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
    Fault(
        "certificates-served",
        "serves a stale certificate",
        shown(pem(authority().leaf(name="old"))),
        WARNING,
    ),
    Fault("certificates-served", "10293 expired 24 hours ago", shown(pem(authority().leaf((-9.0, -1.0))))),
    Fault("certificates-served", "serves no certificate", shown(b"")),
    Fault("webhooks-trusted", "does not contain the CA", bundle(encoded(Authority.make().certificate))),
    Fault("webhooks-trusted", "is empty", bundle("")),
    Fault(
        "webhooks-trusted",
        "does not verify the certificate of autoscaling-injector:10293: self-signed",
        shown(pem(leaf()), why="self-signed"),
    ),
    Fault(
        "webhooks-answer", "failed a test review: 500", changed(answers={HOOK: SiteObservations(Webhook(HOOK, "500"))})
    ),
    Fault("clock-here", "this machine's clock is 600 s ahead of", server(ahead=600.0)),
    Fault("clock-here", "20 s behind", server(ahead=-20.0), WARNING),
    Fault("clock-nodes", "the clock of node node-1 is 90 s ahead of", node_lease(90.0)),
    Fault("clock-nodes", "10 s behind", node_lease(-10.0), WARNING),
    Fault(
        "clock-programs",
        "the holder of the Lease neonvm-controller is 30 s ahead of",
        led_by("neonvm-controller-0-a", ahead=30.0),
        WARNING,
    ),
    Fault("nodes-ready", "node node-2 is not ready: no network", in_list("nodes", "node-2", not_ready), WARNING),
    Fault("nodes-ready", "node node-1 is not ready", leaves_two_unready),
    Fault("nodes-ready", "has no node", changed(nodes=SiteObservations([])), before=True),
    Fault(
        "nodes-devices",
        "node node-2 offers no autoscaling.neon.tech/guest-devices",
        in_list("nodes", "node-2", no_devices),
        WARNING,
    ),
    Fault(
        "nodes-devices",
        "node node-1 offers no autoscaling.neon.tech/guest-devices",
        both(in_list("nodes", "node-1", no_devices), in_list("nodes", "node-2", no_devices)),
    ),
    Fault("nodes-network", "node node-2 offers no autoscaling", in_list("nodes", "node-2", no_network), WARNING),
    Fault(
        "nodes-network",
        "node node-1 offers no autoscaling.neon.tech/flat-network",
        both(in_list("nodes", "node-1", no_network), in_list("nodes", "node-2", no_network)),
    ),
    Fault(
        "nodes-accelerate",
        "guests on node node-1 are emulated, which is many times slower: software emulation",
        of_vm(conditions=EMULATED),
        WARNING,
    ),
    Fault("vms-network", "VM default/db runs without a flat-network address", of_vm(extraNetIP="")),
    Fault("vms-limits", "VM default/db cannot grow to its maximum: its memory", of_vm(conditions=LIMITED), WARNING),
    Fault("vms-closed", "pod default/db-x accepts anyone on ports 20183 and 25183", added("vm_pods", OPEN), WARNING),
    Fault(
        "vms-agents",
        "VM default/db has no agent",
        both(without("pods", "autoscaling-agent-0", "autoscaling-agent-1"), without("database_pods", "pg-1")),
    ),
    Fault("vms-agents", "has two agents", added("vm_pods", SIDECAR), WARNING),
    Fault(
        "agents-answered",
        "the scheduler last answered 90 s ago: 403: not its agent",
        heard(
            {"scheduler_answered_seconds": 90.0, "troubles": [{"with_": "scheduler", "reason": "403: not its agent"}]}
        ),
    ),
    Fault("agents-answered", "the scheduler has never answered", heard({})),
    Fault("agents-answered", "does not answer /explain", heard(None), WARNING),
    Fault(
        "vms-permits",
        "VM default/db: its size of 1 cpu, 2Gi exceeds its permit of 500m cpu, 2Gi",
        permit('{"vCPUs":"500m","mem":"2Gi"}'),
        WARNING,
    ),
    Fault("vms-permits", "metadata.annotations[autoscaling.neon.tech/permit]", permit("{"), WARNING),
    Fault(
        "vms-permits",
        "cannot decode VM default/db: spec.guest.memorySlots",
        in_list("vms", "db", lambda vm: vm["spec"]["guest"]["memorySlots"].update(use=99)),
    ),
    Fault(
        "vms-sleep",
        "VM default/db sets sleep.after but can never sleep",
        in_list("vms", "db", lambda vm: vm["spec"].pop("extraNetwork")),
        WARNING,
    ),
    Fault(
        "vms-readable",
        "Pod default/x: spec: too deep",
        changed(
            ledger=SiteObservations(
                {"unreadable": [{"kind": "Pod", "object": "default/x", "reason": "spec: too deep"}]}
            )
        ),
        WARNING,
    ),
    Fault("vms-placed", "pod default/p is not scheduled: 0/2 nodes", placed(message="0/2 nodes"), WARNING),
    Fault("migrations-end", "migration default/away is Running after 500 s", added("migrations", migration())),
    Fault(
        "migrations-end",
        "has been terminating for 70 s",
        added("migrations", migration(creationTimestamp=stamp(90.0), deletionTimestamp=stamp(70.0))),
    ),
    Fault(
        "migrations-end",
        "should move off node node-1 but cannot: no room",
        changed(ledger=SiteObservations({"nodes": [{"name": "node-1", "stuck": "no room"}]})),
        WARNING,
    ),
    Fault("pods-resize", "the API server does not offer pods/resize", changed(core_api=SiteObservations({}))),
    Fault("pods-resize", "node node-1 is v1.32.9; resizing pods in place needs 1.33", kubelet("v1.32.9")),
    Fault("pods-resize", "node node-1 is v1.33.1; lowering memory in place needs 1.34", kubelet("v1.33.1"), WARNING),
    Fault("pods-resize", "has cpuManagerPolicy: static", kubelet_has(cpuManagerPolicy="static"), WARNING, before=True),
    Fault("pods-resize", "has memoryManagerPolicy: Static", kubelet_has(memoryManagerPolicy="Static"), WARNING),
    Fault(
        "pods-agents",
        "1 pods have opted in, but no agent serves pods",
        in_list("daemon_sets", "autoscaling-agent", serves_no_pods),
    ),
    Fault(
        "pods-agents",
        "pod default/pg-1 has no agent: none runs on node node-3",
        both(of_pod(lambda pod: pod["spec"].update(nodeName="node-3")), changed(kubelets={})),
    ),
    Fault(
        "pods-readable",
        "pod default/pg-1: spec.containers[postgres].resizePolicy: expected NotRequired for memory",
        of_pod(restarts),
        WARNING,
    ),
    Fault(
        "pods-readable",
        "pod default/pg-1: its minimum is what it requests now, so it never shrinks: add min to its bounds",
        of_pod(lambda pod: pod["metadata"]["annotations"].pop("autoscaling.neon.tech/first-requests")),
        WARNING,
    ),
    Fault("pods-resized", "pod default/pg-1: Deferred: not enough cpu", of_pod(deferred), WARNING),
)
