"""Names that live in the Kubernetes API and that every party must spell alike."""

from typing import Final

VM_GROUP: Final = "vm.neon.tech"
VM_VERSION: Final = "v1"
VM_PLURAL: Final = "virtualmachines"
MIGRATION_PLURAL: Final = "virtualmachinemigrations"
VM_KIND: Final = "VirtualMachine"

LABEL_VM_NAME: Final = "vm.neon.tech/name"
"""On a pod: the VirtualMachine, in the same namespace, that the pod runs."""

RUNNER_CONTAINER: Final = "neonvm-runner"
"""In the pod of a VM: the container that runs its guest."""

RUNNER_COMMAND: Final = "neonvm-runner"
"""What that container runs in a pod of our controller; NeonVM's has another program, and its guest another address."""

RUNNER_AUTHORITIES: Final = "RUNNER_AUTHORITIES"
"""In that container: the variable with the authorities whose clients its ports let in. A pod without it is open."""

RUNNER_IGNORES: Final = "SLEEP_IGNORES"
"""In that container: the variable with the addresses whose packets do not wake its guest."""

RUNNER_AUDIENCE: Final = "neonvm-runner"
"""The audience of the token with which that container proves which pod it is; only our controller accepts it."""

AGENT_CONTAINER: Final = "autoscaler-agent"
"""In the pod of a VM: the container of its agent."""

LABEL_INJECT: Final = "autoscaling.neon.tech/inject-agent"
"""On a VirtualMachine, and so on its pod: ``"false"`` keeps the injector from putting the agent into the pod."""

LABEL_ENABLED: Final = "autoscaling.neon.tech/enabled"
"""On a VirtualMachine and its pod: ``"true"`` lets the agent resize it."""

ANNOTATION_USAGE: Final = "vm.neon.tech/usage"
"""On a VM's pod: ``{"cpu": quantity, "memory": quantity}`` that the VM has now."""

ANNOTATION_RESOURCES: Final = "vm.neon.tech/resources"
"""On a VM's pod, for the original's scheduler: ``cpus``, ``memorySlots`` and ``memorySlotSize`` of the VM's spec."""

ANNOTATION_OVERCOMMIT: Final = "vm.neon.tech/overcommit"
"""On a VM's pod, for the original's scheduler: ``overcommit`` of the VM's spec."""

ANNOTATION_BOUNDS: Final = "autoscaling.neon.tech/bounds"
"""On a VirtualMachine: bounds that replace those of its spec for autoscaling."""

ANNOTATION_FLOOR: Final = "autoscaling.neon.tech/floor"
"""On a VirtualMachine: its least size for now, from what the same hour needed before; groups write it.

The injector writes it on a pod with a postgres that replaces a larger one.
"""

ANNOTATION_CONTAINER: Final = "autoscaling.neon.tech/container"
"""On a pod with a postgres: the container to resize, if it is neither named ``postgres`` nor the only one (B.7)."""

ANNOTATION_FIRST_REQUESTS: Final = "autoscaling.neon.tech/first-requests"
"""On a pod with a postgres: ``{"cpu": quantity, "mem": quantity}`` of its template, written by the injector."""

ANNOTATION_RESIZE: Final = "autoscaling.neon.tech/resize"
"""On a pod with a postgres that KubeBlocks manages: ``"true"`` says that its operator leaves resizes alone (B.7)."""

ANNOTATION_CNPG_POD_SPEC: Final = "cnpg.io/podSpec"
"""On a pod of CloudNativePG: the spec that the operator made it from."""

ANNOTATION_CONFIG: Final = "autoscaling.neon.tech/config"
"""On a VirtualMachine: its own scaling policy."""

ANNOTATION_SLEEP: Final = "autoscaling.neon.tech/sleep"
"""On a VirtualMachine: the order to sleep, a text that is new each time. Each is carried out at most once; a VM that
sleeps wakes when the order is removed.
"""

LABEL_KEEP_AWAKE: Final = "autoscaling.neon.tech/keep-awake"
"""On a VirtualMachine: ``"true"`` keeps its agent from ordering it to sleep."""

ANNOTATION_SLEEP_IGNORES: Final = "autoscaling.neon.tech/sleep-ignores"
"""On a VirtualMachine: IPv4 addresses and networks, with commas between them, whose packets do not wake it. Its pod
has them from its start on.
"""

ANNOTATION_PERMIT: Final = "autoscaling.neon.tech/permit"
"""On a VirtualMachine: the permit that the scheduler has granted, written before it is answered."""

ANNOTATION_PERMIT_WRITER: Final = "autoscaling.neon.tech/permit-writer"
"""On a VirtualMachine: which scheduler process wrote the permit; two at once are an error that must be seen."""

LABEL_MAKE_ROOM: Final = "autoscaling.neon.tech/make-room"
"""On a pod that runs no VM: ``true`` lets VMs move away if an in-place resize of it is Deferred (B.14)."""

LABEL_WEIGHT: Final = "autoscaling.neon.tech/weight"
"""On a VirtualMachine: how much of its node's room it is worth beside others if that is short, 1 to 100 (B.17)."""

ANNOTATION_APPROVED: Final = "internal.autoscaling.neon.tech/resources-approved"
"""On a VirtualMachine: what the original's scheduler has granted its agent, written as our permits are."""

ANNOTATION_REQUESTED: Final = "internal.autoscaling.neon.tech/resources-requested"
"""On a VirtualMachine: what its agent has asked the original's scheduler for."""

ANNOTATION_SCALING_UNIT: Final = "autoscaling.neon.tech/scaling-unit"
"""On a VirtualMachine: the steps in which its agent asked the original's scheduler."""

LABEL_ALWAYS_MIGRATE: Final = "autoscaling.neon.tech/testing-only-always-migrate"
"""On a VirtualMachine: ``"true"`` has the original's scheduler move it again and again."""

AUTO_MIGRATION: Final = "autoscaling.neon.tech/auto-migration-enabled"
"""A label or annotation of a VirtualMachine: ``"false"`` keeps the scheduler from moving it by itself, ``"true"`` lets
it if the settings ask VMs to opt in.
"""

BOOTING: Final = "Booting"
"""The reason in a VirtualMachine's condition ``Available`` while its guest boots."""

LABEL_CREATED_BY: Final = "autoscaling.neon.tech/created-by"
"""On a VirtualMachineMigration: who made it; ``SCHEDULER_NAME`` on those of the scheduler."""

ANNOTATION_TARGET_NODE: Final = "autoscaling.neon.tech/target-node"
"""On a VirtualMachineMigration: the node that it has to go to, and on which the scheduler keeps room for it."""

ANNOTATION_REASON: Final = "autoscaling.neon.tech/reason"
"""On a VirtualMachineMigration: why the scheduler ordered it, for people."""

ANNOTATION_ROOM_FREED: Final = "autoscaling.neon.tech/room-freed"
"""On a Node: touched when room is freed while pods wait, so that kube-scheduler looks at them again."""

LABEL_MACHINE: Final = "node.kubernetes.io/instance-type"
LABEL_MACHINE_OLD: Final = "beta.kubernetes.io/instance-type"
"""On a Node: its instance type, and the label that old clusters have for it."""

LABEL_NODE_GROUP: Final = "autoscaling.neon.tech/node-group"
"""On a Node: the group that it belongs to, as a price table names it, if no label of its cloud says so."""

SCHEDULER_NAME: Final = "autoscale-scheduler"
"""The ``schedulerName`` of pods that our extender places."""

GROUP_GROUP: Final = "autoscaling.neon.tech"
GROUP_VERSION: Final = "v1alpha1"
GROUP_PLURAL: Final = "virtualmachinegroups"
GROUP_KIND: Final = "VirtualMachineGroup"

LABEL_GROUP: Final = "autoscaling.neon.tech/group"
"""On a VirtualMachine and its pod: the VirtualMachineGroup, in the same namespace, that it belongs to."""

PASSWORD_SUFFIX: Final = ".postgres-password"  # noqa: S105 - a name
"""The Secret named after the VM or its group, plus this, has the database's password in its entry ``PASSWORD_KEY``."""
PASSWORD_KEY: Final = "password"  # noqa: S105 - a name

LABEL_ROLE: Final = "autoscaling.neon.tech/role"
"""On a VirtualMachine of a group and its pod, or on a pod with a postgres: ``primary`` or ``replica``."""

LABEL_CNPG_ROLE: Final = "cnpg.io/instanceRole"
"""On a pod of CloudNativePG: ``primary`` or ``replica``."""

ANNOTATION_SWITCHOVER: Final = "autoscaling.neon.tech/switchover"
"""On a Cluster of CloudNativePG: ``"true"`` lets groups promote a standby if the primary's node has no room for it."""

ANNOTATION_USE_HISTORY: Final = "autoscaling.neon.tech/use-history"
"""On a VerticalPodAutoscaler: the histograms of use from which our own recommender recommends."""

ANNOTATION_RECOMMENDATION: Final = "autoscaling.neon.tech/recommendation"
"""On an HPA or a VerticalPodAutoscaler of VMs: what our own recommender recommends, in the words of its status."""

ANNOTATION_ORIGINAL: Final = "autoscaling.neon.tech/original-spec"
"""On an HPA or a VerticalPodAutoscaler of others that a group has changed: what it was before, to be put back."""

ANNOTATION_DRAINING: Final = "autoscaling.neon.tech/draining-since"
"""On a VirtualMachine of a group: since when it has been about to leave, in RFC 3339."""

KERNEL_PRIMARY: Final = "autoscale.primary"
"""On a guest's kernel command line: the address of the primary that its database streams from as a standby."""

TOKEN_AUDIENCE: Final = "autoscale-scheduler"  # noqa: S105 - the audience of a token, not a secret
"""The audience of the projected service-account token with which an agent speaks to the scheduler."""
