"""The images, and the layers that each is made of (pure).

Images share layers: a node that has one service's image fetches only what another one adds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

GUEST: Final = "linux/amd64"
"""The platform that a guest is built for, even if its node has another one."""

NON_ROOT: Final = "65532:65532"
"""The user and group of services, as numbers: Kubernetes cannot tell whether a name is root."""

ROOT: Final = "0:0"
"""The user of programs that change a node's network or speak to its kubelet; their pods drop all other rights."""


@dataclass(frozen=True, slots=True)
class Packages:
    """A layer of Debian packages with what they depend on, without ``left_out`` and libraries that nothing needs."""

    name: str
    packages: tuple[str, ...]
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Wheels:
    """A layer of the locked wheels that the project needs with ``extras``, without those of the layers below."""

    name: str
    extras: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ImageSources:
    """A layer of Python packages and modules of this project."""

    name: str
    packages: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GuestDisk:
    """A layer with a VM's root disk at /disk.qcow2, and the busybox with which NeonVM copies it out."""

    name: str


@dataclass(frozen=True, slots=True)
class GuestKernel:
    """A layer with the kernel and the initrd of guests in /vm/kernel, where NeonVM's runner has them."""

    name: str


Layer = Packages | Wheels | ImageSources | GuestDisk | GuestKernel


@dataclass(frozen=True, slots=True)
class Image:
    """One image. ``starts`` is ``module:function``, as in pyproject.toml; the program has the image's name.

    ``allowed`` are names of programs that are forbidden in other images and needed in this one.
    """

    name: str
    title: str
    layers: tuple[Layer, ...]
    starts: str = ""
    ports: tuple[int, ...] = ()
    user: str = NON_ROOT
    allowed: tuple[str, ...] = ()

    @property
    def is_guest(self) -> bool:
        """True if it carries a VM's disk instead of a program."""
        return not self.starts

    def is_built_for(self, platform: str) -> bool:
        """Return True if the image exists for the platform of that name: a guest's disk is built for ``GUEST``
        alone.
        """
        # A runner on another platform emulates the guest, so only the image with the disk is tied to it.
        return platform == GUEST or not any(isinstance(layer, GuestDisk) for layer in self.layers)


PYTHON: Final = Packages(
    "python",
    ("base-files", "ca-certificates", "libpython3.11-stdlib", "python3.11-minimal"),
    # What no service imports: interactive modules, tests and old formats.
    left_out=(
        *(f"usr/lib/python3.11/{name}/*" for name in ("lib2to3", "distutils", "ensurepip", "pydoc_data")),
        *(f"usr/lib/python3.11/{name}/*" for name in ("curses", "dbm")),
        *(f"usr/lib/python3.11/lib-dynload/{name}.*" for name in ("_curses", "_curses_panel", "_dbm")),
        *(f"usr/lib/python3.11/lib-dynload/{name}.*" for name in ("nis", "ossaudiodev", "readline", "_crypt")),
        *("usr/lib/python3.11/lib-dynload/_test*", "usr/lib/python3.11/lib-dynload/_ctypes_test*"),
        *("usr/share/base-files/*", "etc/update-motd.d/*", "usr/share/ca-certificates/*", "usr/sbin/*"),
        *("usr/lib/*/krb5/*", "usr/share/readline/*", "etc/netconfig", "etc/inputrc", "etc/dpkg/*"),
    ),
)
_WHEELS: Final = Wheels("wheels")
# Not in the images of the agent and the runner, which stay small because they run beside each VM.
_SERVICE_WHEELS: Final = Wheels("service-wheels", ("scheduler",))
_PROTOCOL: Final = ImageSources("protocol", ("protocol",))
_SERVICES: Final = (PYTHON, _WHEELS, _SERVICE_WHEELS, _PROTOCOL, ImageSources("services", ("scheduler_plugin",)))

_QEMU: Final = Packages(
    "qemu",
    ("qemu-system-x86", "qemu-utils"),
    # QEMU runs headless with virtio only: no sound, screens, other machines' firmware or tracing.
    left_out=(
        *("usr/libexec/*", "usr/lib/qemu/*", "usr/lib/ipxe/*", "usr/share/ipxe/*", "usr/sbin/*"),
        *(f"usr/bin/{name}" for name in ("kvm", "qemu-io", "qemu-nbd", "qemu-pr-helper", "qemu-storage-daemon")),
        *(f"usr/bin/{name}" for name in ("qemu-system-i386", "qemu-system-x86_64-microvm")),
        *(f"usr/lib/*/qemu/{kind}-*" for kind in ("accel-qtest", "audio", "chardev", "hw", "ui")),
        *("etc/qemu-if*", "etc/libnl-3/*", "usr/share/alsa/*", "usr/share/libdrm/*", "usr/share/pmdk/*"),
        *(f"usr/lib/*/{name}/*" for name in ("glib-2.0", "rsocket", "sasl2", "vdeplug")),
        *("usr/share/qemu/keymaps/*", "usr/share/qemu/trace-events-all", "usr/share/seabios/vgabios*"),
        *(f"usr/share/qemu/{name}*" for name in ("QEMU,", "bamboo", "canyonlands", "hppa", "npcm7xx", "openbios")),
        *(f"usr/share/qemu/{name}*" for name in ("opensbi", "palcode", "s390", "sgabios", "skiboot", "slof", "vof")),
    ),
)
_IPROUTE: Final = Packages(
    "iproute",
    ("iproute2",),
    left_out=(
        *(f"usr/bin/{name}" for name in ("lnstat", "nstat", "rdma", "routef", "routel", "ss", "ctstat", "rtstat")),
        *(f"usr/sbin/{name}" for name in ("arpd", "dcb", "devlink", "genl", "rtacct", "rtmon", "tc", "tipc", "vdpa")),
        *("etc/netconfig", "usr/lib/*/tc/*", "usr/lib/tc/*", "usr/lib/*/sasl2/*", "etc/bpf", "var/*"),
    ),
)
_NFT: Final = Packages("nftables", ("nftables",), left_out=("etc/*", "lib/systemd/*", "usr/lib/systemd/*", "var/*"))
_VM_WHEELS: Final = Wheels("vm-wheels", ("runner",))
_VMS: Final = ImageSources("vms", ("deploy.kube", "deploy.neonvm", "deploy.owned_process", "vm_image"))

# The packages come last: a layer keeps only those of its libraries that it or a layer below needs.
_GRPC: Final = (Wheels("expander-wheels", ("expander",)), Packages("c++", ("libstdc++6",)))

_VM_SERVICES: Final = (*_SERVICES[:3], _VM_WHEELS, _PROTOCOL, _VMS)

IMAGES: Final[Mapping[str, Image]] = {
    image.name: image
    for image in (
        Image(
            "autoscaler-agent",
            "Resizes a VM, or the VMs of a node, to their load",
            (PYTHON, _WHEELS, _PROTOCOL, ImageSources("agent", ("agent",))),
            "agent.__main__:main",
            (9101,),
        ),
        Image(
            "autoscale-scheduler",
            "Permits sizes, places VMs and moves them",
            _SERVICES,
            "scheduler_plugin.__main__:main",
            (10297, 10298, 10299),
        ),
        Image(
            "autoscale-groups",
            "Scales groups: replicas and sizes together",
            _SERVICES,
            "scheduler_plugin.groups.__main__:main",
            (10294,),
        ),
        Image(
            "autoscale-dashboard",
            "Shows a fleet live in a browser",
            _SERVICES,
            "scheduler_plugin.dashboard.__main__:main",
            (10289, 10290),
        ),
        Image(
            "autoscale-expander",
            "Tells the Cluster Autoscaler which node group to grow",
            (*_SERVICES[:3], *_GRPC, *_SERVICES[3:]),
            "scheduler_plugin.expander.__main__:main",
            (10295, 10296),
        ),
        Image(
            "autoscale-injector",
            "Puts the agent into the pods of VMs, and keeps certificates",
            (*_SERVICES[:3], Wheels("injector-wheels", ("injector",)), *_SERVICES[3:]),
            "scheduler_plugin.injector.__main__:main",
            (10292, 10293),
        ),
        Image(
            "neonvm-controller",
            "Makes pods of VMs, resizes and moves them",
            _VM_SERVICES,
            "deploy.neonvm.service.__main__:main",
            (10293,),
        ),
        Image(
            "neonvm-network",
            "One node's part of the flat network of VMs",
            (*_SERVICES[:3], _VM_WHEELS, *_GRPC, _PROTOCOL, _VMS, _IPROUTE, _NFT),
            "deploy.neonvm.overlay.__main__:main",
            (10292,),
            # It changes links, routes and nftables of the node.
            user=ROOT,
        ),
        Image(
            "neonvm-devices",
            "Gives a node's VMs the devices that make them fast",
            (*_SERVICES[:3], *_GRPC, _PROTOCOL, _VMS),
            "deploy.neonvm.devices.__main__:main",
            (10291,),
            # Device plug-ins register with the kubelet over a socket that belongs to root.
            user=ROOT,
        ),
        Image(
            "neonvm-runner",
            "Runs a VM's guest in its pod",
            (PYTHON, _WHEELS, _VM_WHEELS, _QEMU, GuestKernel("guest-kernel"), _PROTOCOL, _VMS),
            "deploy.neonvm.runner.__main__:main",
            (20183, 25183),
        ),
        Image("postgres-vm", "The root disk of a postgres VM", (GuestDisk("guest-disk"),), user=""),
    )
}
"""The images by name."""
