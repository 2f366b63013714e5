"""Names in the Kubernetes API that all programs share."""

from typing import Final

VM_GROUP: Final = "vm.neon.tech"
VM_VERSION: Final = "v1"
VM_PLURAL: Final = "virtualmachines"
MIGRATION_PLURAL: Final = "virtualmachinemigrations"
VM_KIND: Final = "VirtualMachine"

FINALIZER: Final = "vm.neon.tech/finalizer"
"""On a VirtualMachine or VirtualMachineMigration: its controller must clean up before the object may go."""

LABEL_VM_NAME: Final = "vm.neon.tech/name"
"""On a pod: the VirtualMachine that the pod runs, in the same namespace."""

RUNNER_CONTAINER: Final = "neonvm-runner"
"""In a VM's pod: the container that runs the guest."""

RUNNER_COMMAND: Final = "neonvm-runner"
"""That container's command in a pod of our controller. In NeonVM's pods the command and the guest's address differ."""

RUNNER_AUTHORITIES: Final = "RUNNER_AUTHORITIES"
"""In that container: the variable with the CAs whose clients may connect to its ports. Without it, anyone may."""

RUNNER_IGNORES: Final = "SLEEP_IGNORES"
"""In that container: the variable with the addresses whose packets do not wake the guest."""

RUNNER_STORAGE: Final = "EPHEMERAL_STORAGE"
"""In that container: the variable with its limit of ephemeral storage in bytes."""

RUNNER_AUDIENCE: Final = "neonvm-runner"
"""The audience of the token with which that container proves its pod's identity; only our controller accepts it."""

AGENT_CONTAINER: Final = "autoscaler-agent"
"""In a VM's pod: the agent's container."""

LABEL_INJECT: Final = "autoscaling.neon.tech/inject-agent"
"""On a VirtualMachine, and thus on its pod: ``"false"`` keeps the injector from adding the agent to the pod."""

LABEL_ENABLED: Final = "autoscaling.neon.tech/enabled"
"""On a VirtualMachine and its pod: ``"true"`` lets the agent resize it."""

ANNOTATION_USAGE: Final = "vm.neon.tech/usage"
"""On a VM's pod: the VM's current size, ``{"cpu": quantity, "memory": quantity}``."""

ANNOTATION_RESOURCES: Final = "vm.neon.tech/resources"
"""On a VM's pod, for the original project's scheduler: ``cpus``, ``memorySlots`` and ``memorySlotSize`` of the VM's
spec.
"""

ANNOTATION_OVERCOMMIT: Final = "vm.neon.tech/overcommit"
"""On a VM's pod, for the original project's scheduler: ``overcommit`` of the VM's spec."""

ANNOTATION_BOUNDS: Final = "autoscaling.neon.tech/bounds"
"""On a VirtualMachine: bounds for autoscaling that replace the spec's."""

ANNOTATION_FLOOR: Final = "autoscaling.neon.tech/floor"
"""On a VirtualMachine: its current minimum size, which groups derive from earlier needs in the same hour.

The injector writes it on a postgres pod that replaces a larger one.
"""

ANNOTATION_CONTAINER: Final = "autoscaling.neon.tech/container"
"""On a postgres pod: the container to resize, if it is neither named ``postgres`` nor the only one (B.7)."""

ANNOTATION_FIRST_REQUESTS: Final = "autoscaling.neon.tech/first-requests"
"""On a postgres pod: the requests of its template, ``{"cpu": quantity, "mem": quantity}``, written by the injector."""

ANNOTATION_RESIZE: Final = "autoscaling.neon.tech/resize"
"""On a postgres pod of KubeBlocks: ``"true"`` means that its operator does not revert resizes (B.7)."""

ANNOTATION_CNPG_POD_SPEC: Final = "cnpg.io/podSpec"
"""On a pod of CloudNativePG: the spec from which the operator created it."""

ANNOTATION_CONFIG: Final = "autoscaling.neon.tech/config"
"""On a VirtualMachine: its own scaling policy."""

ANNOTATION_SLEEP: Final = "autoscaling.neon.tech/sleep"
"""On a VirtualMachine: the order to sleep, a new text each time. Each is executed at most once; a sleeping VM wakes
when its order is removed.
"""

LABEL_KEEP_AWAKE: Final = "autoscaling.neon.tech/keep-awake"
"""On a VirtualMachine: ``"true"`` keeps its agent from ordering it to sleep."""

ANNOTATION_SLEEP_IGNORES: Final = "autoscaling.neon.tech/sleep-ignores"
"""On a VirtualMachine: comma-separated IPv4 addresses and networks whose packets do not wake it. Its pod reads them at
startup.
"""

ANNOTATION_PERMIT: Final = "autoscaling.neon.tech/permit"
"""On a VirtualMachine: the permit that the scheduler granted, written before the agent gets its answer."""

ANNOTATION_PERMIT_WRITER: Final = "autoscaling.neon.tech/permit-writer"
"""On a VirtualMachine: the scheduler process that wrote the permit, to detect two that are active at the same time."""

LABEL_MAKE_ROOM: Final = "autoscaling.neon.tech/make-room"
"""On a pod without a VM: ``true`` lets VMs move away if the pod's in-place resize is Deferred (B.14)."""

LABEL_WEIGHT: Final = "autoscaling.neon.tech/weight"
"""On a VirtualMachine: its weight, 1 to 100, in sharing a node that is short of room (B.17)."""

ANNOTATION_APPROVED: Final = "internal.autoscaling.neon.tech/resources-approved"
"""On a VirtualMachine: what the original project's scheduler granted its agent, in the format of our permits."""

ANNOTATION_REQUESTED: Final = "internal.autoscaling.neon.tech/resources-requested"
"""On a VirtualMachine: what its agent requested from the original project's scheduler."""

ANNOTATION_SCALING_UNIT: Final = "autoscaling.neon.tech/scaling-unit"
"""On a VirtualMachine: the compute unit in which its agent made requests to the original project's scheduler."""

LABEL_ALWAYS_MIGRATE: Final = "autoscaling.neon.tech/testing-only-always-migrate"
"""On a VirtualMachine: ``"true"`` makes the original project's scheduler keep migrating it."""

AUTO_MIGRATION: Final = "autoscaling.neon.tech/auto-migration-enabled"
"""A label or annotation of a VirtualMachine: ``"false"`` forbids automatic migration by the scheduler, ``"true"``
allows it if the settings require VMs to opt in.
"""

BOOTING: Final = "Booting"
"""Reason of a VirtualMachine's condition ``Available`` while its guest boots."""

LABEL_CREATED_BY: Final = "autoscaling.neon.tech/created-by"
"""On a VirtualMachineMigration: its creator; ``SCHEDULER_NAME`` for the scheduler."""

ANNOTATION_TARGET_NODE: Final = "autoscaling.neon.tech/target-node"
"""On a VirtualMachineMigration: its target node, on which the scheduler reserves room for it."""

ANNOTATION_REASON: Final = "autoscaling.neon.tech/reason"
"""On a VirtualMachineMigration: why the scheduler created it, as human-readable text."""

ANNOTATION_ROOM_FREED: Final = "autoscaling.neon.tech/room-freed"
"""On a Node: updated when room becomes free while pods are pending, so that kube-scheduler retries them."""

LABEL_MACHINE: Final = "node.kubernetes.io/instance-type"
LABEL_MACHINE_OLD: Final = "beta.kubernetes.io/instance-type"
"""On a Node: its instance type, and the deprecated label for it in old clusters."""

LABEL_NODE_GROUP: Final = "autoscaling.neon.tech/node-group"
"""On a Node: its node group as named in a price table, if no label of its cloud names the group."""

SCHEDULER_NAME: Final = "autoscale-scheduler"
"""The ``schedulerName`` of pods that our extender places."""

GROUP_GROUP: Final = "autoscaling.neon.tech"
GROUP_VERSION: Final = "v1alpha1"
GROUP_PLURAL: Final = "virtualmachinegroups"
GROUP_KIND: Final = "VirtualMachineGroup"

LABEL_GROUP: Final = "autoscaling.neon.tech/group"
"""On a VirtualMachine and its pod: its VirtualMachineGroup, in the same namespace."""

PASSWORD_SUFFIX: Final = ".postgres-password"  # noqa: S105 - a name
"""The Secret named like the VM or its group, plus this suffix, contains the database's password as ``PASSWORD_KEY``."""
PASSWORD_KEY: Final = "password"  # noqa: S105 - a name

LABEL_ROLE: Final = "autoscaling.neon.tech/role"
"""On a VirtualMachine of a group and its pod, or on a postgres pod: ``primary`` or ``replica``."""

LABEL_CNPG_ROLE: Final = "cnpg.io/instanceRole"
"""On a pod of CloudNativePG: ``primary`` or ``replica``."""

ANNOTATION_SWITCHOVER: Final = "autoscaling.neon.tech/switchover"
"""On a CloudNativePG Cluster: ``"true"`` allows groups to promote a standby if the primary's node lacks room for it."""

ANNOTATION_USE_HISTORY: Final = "autoscaling.neon.tech/use-history"
"""On a VerticalPodAutoscaler: the usage histograms of our own recommender."""

ANNOTATION_RECOMMENDATION: Final = "autoscaling.neon.tech/recommendation"
"""On an HPA or a VerticalPodAutoscaler of VMs: our own recommender's recommendation, in the format of its status."""

ANNOTATION_ORIGINAL: Final = "autoscaling.neon.tech/original-spec"
"""On someone else's HPA or VerticalPodAutoscaler that a group changed: its original spec, to be restored."""

ANNOTATION_DRAINING: Final = "autoscaling.neon.tech/draining-since"
"""On a VirtualMachine of a group: when its draining started (RFC 3339)."""

KERNEL_PRIMARY: Final = "autoscale.primary"
"""On a guest's kernel command line: the address of the primary from which its standby database streams."""

TOKEN_AUDIENCE: Final = "autoscale-scheduler"  # noqa: S105 - the audience of a token, not a secret
"""The audience of the projected service-account token that an agent sends to the scheduler."""
