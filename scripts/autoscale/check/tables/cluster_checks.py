"""The cluster, the permissions in it, definitions, and the namespace: lines of ``autoscale check`` (pure)."""

from __future__ import annotations

from typing import Final

from scripts.autoscale.check.finding import Check, CheckSection, When
from scripts.autoscale.check.judges import access, admission_refusals, api_server, custom_resources

CHECKS: Final = (
    Check(
        "api-answers",
        CheckSection.API,
        "the API server answers",
        api_server.answers,
        "Nothing else can be looked at. The line has the transport's or the server's own words: refused connections,"
        " a certificate that is not trusted, credentials that have expired, or something at that address that is no"
        " API server.",
        "kubectl cluster-info; kubectl config current-context",
        When.ALWAYS,
        # Without the API server every other line would be skipped for the same reason.
        is_fatal=True,
    ),
    Check(
        "api-looks",
        CheckSection.API,
        "every look succeeds",
        api_server.looks_succeed,
        "Something was not seen, though you may look at it and it is there: the API server or a program did not answer"
        " in time, or answered with an error. Lines that need it are skipped, or know less.",
        "look again; kubectl get --raw '/readyz?verbose'",
        When.ALWAYS,
    ),
    Check(
        "api-version",
        CheckSection.API,
        "its version is supported",
        api_server.is_supported,
        "Older clusters lack selectable fields of definitions and tokens that name their node (1.31), and IPAddress"
        " objects (1.33, for `neonvm-controller`). A newer one than was tested is a warning.",
        "upgrade the cluster, or install a release of this project that is tested with it.",
        When.ALWAYS,
    ),
    Check(
        "api-addresses",
        CheckSection.API,
        "pods have IPv4 addresses",
        api_server.addresses_are_ipv4,
        "Our programs listen at IPv4 addresses, the leading scheduler writes one into its EndpointSlices, and VMs have"
        " one each. Where IPv6 is the first family, kubelets probe pods where nothing listens, and the scheduler does"
        " not start. Of two families IPv4 has to be the first. The Service `default/kubernetes` is looked at.",
        "kubectl -n default get service kubernetes -o yaml; install into a cluster whose first family is IPv4.",
        When.ALWAYS,
    ),
    Check(
        "kube-scheduler-version",
        CheckSection.API,
        "our kube-scheduler is no newer",
        api_server.kube_scheduler_fits,
        "The kube-scheduler in the pod `autoscaling-scheduler` must not be newer than the API server, and at most one"
        " minor version older. The tag of its image is compared. After an upgrade of the cluster it has to follow.",
        "kubectl get --raw /version; kubectl -n {namespace} set image deployment/autoscaling-scheduler"
        " kube-scheduler=registry.k8s.io/kube-scheduler:VERSION",
    ),
    Check(
        "rights-install",
        CheckSection.RIGHTS,
        "you may install",
        access.may_install,
        "Installing makes the namespace, definitions, roles and their bindings (one of them in `kube-system`),"
        " accounts, workloads and settings. Who grants rights must have them, or may `escalate` and `bind`.",
        "kubectl auth can-i --list -n {namespace}; ask for the ClusterRole cluster-admin",
        When.BEFORE,
    ),
    Check(
        "rights-commands",
        CheckSection.RIGHTS,
        "you may use the commands",
        access.may_use_commands,
        "`autoscale top`, `explain` and `migrate` list VMs, pods, events and migrations, of which `top` also watches"
        " VMs, pods and migrations. They create and delete migrations, and reach agents and the scheduler by"
        " port-forward: they explain on their own loopback, and elsewhere for tokens.",
        "kubectl auth can-i --list -n {namespace}; have the missing rights granted",
    ),
    Check(
        "rights-programs",
        CheckSection.RIGHTS,
        "the programs' service accounts may do their work",
        access.programs_may_act,
        "Each program needs every right of its role in the manifests. The page lists pods only with"
        " `--agents-namespace`, and nodes only with `--history`; a scheduler needs its Lease only with `--lease`, and"
        " its slices only with `--leader-endpoints`. Without `patch virtualmachines` no permit is stored and nothing"
        " grows; without `create tokenreviews` agents are answered 503.",
        "kubectl auth can-i --list --as=system:serviceaccount:{subject}; apply the roles and bindings of the"
        " release again",
    ),
    Check(
        "definitions-in-the-way",
        CheckSection.DEFINITIONS,
        "definitions that are there already fit",
        custom_resources.nothing_in_the_way,
        "NeonVM of another release may have defined VirtualMachine with fewer fields. Ours has every field of v0.49.1"
        " as well, so replacing it keeps NeonVM's controller working.",
        "kubectl diff -f deploy/neonvm.yaml",
        When.BEFORE,
    ),
    Check(
        "definitions-served",
        CheckSection.DEFINITIONS,
        "the kinds are defined and served",
        custom_resources.are_installed,
        "Without VirtualMachine the scheduler never becomes ready. Without VirtualMachineMigration VMs cannot be"
        " moved. Hvpa, Tortoise and VirtualMachineGroup are needed where `autoscaling-groups` is installed.",
        "kubectl apply --server-side -f deploy/neonvm.yaml -f deploy/kubernetes/crds/",
    ),
    Check(
        "definitions-fields",
        CheckSection.DEFINITIONS,
        "the definitions have the fields that we need",
        custom_resources.fields_are_there,
        "A definition from another project or an older release drops fields silently: what we write is not kept.",
        "kubectl apply --server-side --force-conflicts -f deploy/neonvm.yaml",
    ),
    Check(
        "namespace-exists",
        CheckSection.NAMESPACE,
        "the namespace is there",
        admission_refusals.exists,
        "The installation's namespace: `--namespace`, else the one in which `autoscaling-scheduler` is found. Before"
        " installing that is `autoscale-system`, which need not be there.",
        "kubectl create namespace {namespace}",
        When.ALWAYS,
    ),
    Check(
        "namespace-pod-security",
        CheckSection.NAMESPACE,
        "Pod Security admits our pods",
        admission_refusals.pod_security,
        "A pod of each program was sent to the API server as a dry run, and its label"
        " `pod-security.kubernetes.io/enforce` refused one. Most programs are `restricted`; `neonvm-devices` and"
        " `neonvm-network` need `privileged`. Pods that run stay, and the next one is not made. Before there is a"
        " namespace, `default` stands for it, which has no such label either in most clusters.",
        "kubectl label --overwrite namespace {namespace} pod-security.kubernetes.io/enforce=privileged",
        When.ALWAYS,
    ),
    Check(
        "namespace-quota",
        CheckSection.NAMESPACE,
        "no quota or limit is in the way",
        admission_refusals.quota,
        "A ResourceQuota or LimitRange refused a pod that was sent as a dry run. Pods that run stay, and a"
        " replacement would not be made. *Insufficient quota to match these scopes* is the opposite: the cluster (GKE)"
        " admits pods of the system's priority classes only where a quota is for them. Where the namespace is yet to"
        " come that is a warning: the chart makes such a quota with `priorityQuota=true`.",
        "kubectl -n {namespace} describe quota,limits",
        When.ALWAYS,
    ),
    Check(
        "namespace-admission",
        CheckSection.NAMESPACE,
        "nothing else refuses our pods",
        admission_refusals.others,
        "A policy or an admission webhook of another project refused a pod that was sent as a dry run; the line has"
        " its words.",
        "kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations,validatingadmissionpolicies",
        When.ALWAYS,
    ),
)
