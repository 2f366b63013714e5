"""The images and their layers (pure). Images share layers, so a node pulls common layers once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

GUEST: Final = "linux/amd64"
"""The guests' platform, on nodes of any platform."""

NON_ROOT: Final = "65532:65532"
"""User and group of services; numeric, because the kubelet cannot check names for ``runAsNonRoot``."""

ROOT: Final = "0:0"
"""For programs that change a node's network or use the kubelet's sockets; their pods drop other capabilities."""


@dataclass(frozen=True, slots=True)
class Packages:
    """A layer of Debian packages and their dependencies, without ``left_out`` and unused libraries."""

    name: str
    packages: tuple[str, ...]
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Wheels:
    """A layer of the project's locked wheels with ``extras``, without the wheels of the layers below."""

    name: str
    extras: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ImageSources:
    """A layer of Python packages and modules of this project."""

    name: str
    packages: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GuestDisk:
    """A layer with a VM's root disk at /disk.qcow2, and busybox, which NeonVM uses to copy it."""

    name: str


@dataclass(frozen=True, slots=True)
class GuestKernel:
    """A layer with the guests' kernel and initrd in /vm/kernel, as in NeonVM's runner."""

    name: str


Layer = Packages | Wheels | ImageSources | GuestDisk | GuestKernel


@dataclass(frozen=True, slots=True)
class Image:
    """One image. ``starts`` is the ``module:function`` of its program, which has the image's name."""

    name: str
    title: str
    layers: tuple[Layer, ...]
    starts: str = ""
    ports: tuple[int, ...] = ()
    user: str = NON_ROOT

    @property
    def is_guest(self) -> bool:
        """True if the image has a VM's disk instead of a program."""
        return not self.starts

    def is_built_for(self, platform: str) -> bool:
        """Return True if the image is built for ``platform``; an image with a guest's disk only for ``GUEST``."""
        return platform == GUEST or not any(isinstance(layer, GuestDisk) for layer in self.layers)


PYTHON: Final = Packages(
    "python",
    ("base-files", "ca-certificates", "libpython3.11-stdlib", "python3.11-minimal"),
    # Modules that no service imports.
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
# Not in the images of the agent and the runner, which must be small, because each VM may have its own.
_SERVICE_WHEELS: Final = Wheels("service-wheels", ("scheduler",))
_PROTOCOL: Final = ImageSources("protocol", ("protocol",))
_SERVICES: Final = (PYTHON, _WHEELS, _SERVICE_WHEELS, _PROTOCOL, ImageSources("services", ("scheduler_plugin",)))

_QEMU: Final = Packages(
    "qemu",
    ("qemu-system-x86", "qemu-utils"),
    # QEMU runs headless with virtio only.
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

# Packages last: libraries that only a layer above needs would be removed as unused.
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
            "Grants sizes, places VMs and migrates them",
            _SERVICES,
            "scheduler_plugin.__main__:main",
            (10297, 10298, 10299),
        ),
        Image(
            "autoscale-groups",
            "Scales groups horizontally and vertically",
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
            "Chooses the node group that the Cluster Autoscaler grows",
            (*_SERVICES[:3], *_GRPC, *_SERVICES[3:]),
            "scheduler_plugin.expander.__main__:main",
            (10295, 10296),
        ),
        Image(
            "autoscale-injector",
            "Adds the agent to VM pods, and renews certificates",
            (*_SERVICES[:3], Wheels("injector-wheels", ("injector",)), *_SERVICES[3:]),
            "scheduler_plugin.injector.__main__:main",
            (10292, 10293),
        ),
        Image(
            "neonvm-controller",
            "Creates pods for VMs, resizes and migrates them",
            _VM_SERVICES,
            "deploy.neonvm.service.__main__:main",
            (10293,),
        ),
        Image(
            "neonvm-network",
            "Maintains the VMs' flat network on a node",
            (*_SERVICES[:3], _VM_WHEELS, *_GRPC, _PROTOCOL, _VMS, _IPROUTE, _NFT),
            "deploy.neonvm.overlay.__main__:main",
            (10292,),
            user=ROOT,
        ),
        Image(
            "neonvm-devices",
            "Device plugin for /dev/kvm and /dev/vhost-net",
            (*_SERVICES[:3], *_GRPC, _PROTOCOL, _VMS),
            "deploy.neonvm.devices.__main__:main",
            (10291,),
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
"""Images by name."""
