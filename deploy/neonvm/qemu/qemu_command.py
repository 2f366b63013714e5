"""The command line of a guest's QEMU (pure).

Everything that must be equal on both ends of a migration is derived from the VM, never from the pod: for example, the
VM's address determines its MAC.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from deploy.neonvm.addressing import FLAT_PREFIX, LINK_GUEST, LINK_POD, LINK_PORTS, LINK_PREFIX, flat_mac
from deploy.neonvm.ports import GuestError, GuestSpec
from deploy.neonvm.qemu.accelerator import MACHINE, QEMU, Accelerator
from deploy.owned_process import owned
from protocol.names import KERNEL_PRIMARY
from protocol.units import Bytes
from vm_image.build import GuestImage

MEMORY_DEVICE: Final = "vm0"
"""ID of the virtio-mem device, as NeonVM's own controller expects it."""
MEMORY_BLOCK: Final = Bytes(2 * 1024**2)
"""Block size of virtio-mem: its size is a multiple of this."""

_LINUX_BLOCK: Final = Bytes(128 * 1024**2)
"""Linux on x86 adds memory in blocks of this size. The device's size is rounded up to it, its requested size is not."""

_FORWARD_NETWORK: Final = "10.255.255.0/24"
"""QEMU's user-mode network needs addresses of its own in addition to the two of the link."""

_LINK_MAC: Final = "02:00:0a:ff:ff:fe"
_MOVABLE_RATIO: Final = 801
"""Maximum of movable memory, in per cent of kernel memory; the same value as NeonVM's.

Movable memory can be unplugged, but cannot hold kernel data, such as page tables and the descriptors of its own pages
(1/64 of its size). If all plugged memory were movable, a guest that grows far beyond its boot memory would run out of
kernel memory, and the OOM killer would kill its database.
"""
# `panic=-1` and `reboot=t` make QEMU exit on a panic, because it is launched with -no-reboot.
_KERNEL: Final = (
    "console=ttyS0 quiet loglevel=3 mitigations=off nokaslr oops=panic panic=-1 reboot=t psi=1 "
    "memhp_default_state=online memory_hotplug.online_policy=auto-movable "
    f"memory_hotplug.auto_movable_ratio={_MOVABLE_RATIO} random.trust_cpu=on swiotlb=noforce"
)
MAX_VM_ARGUMENTS: Final = 1024
"""Characters. Linux on x86 accepts a command line of 2,047, and our own arguments need about 500."""

SANDBOX: Final = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"
"""QEMU's seccomp filter. A guest that breaks into QEMU cannot start programs, change its user or its CPU affinity."""

_ARGUMENT: Final = re.compile(r"[!#-~]+")
_RESERVED_NAMES: Final = frozenset({"__", "maxcpus", "nr_cpus", "possible_cpus"})
_VM_NAMES: Final = frozenset({KERNEL_PRIMARY, "autoscale.gateway"})


@dataclass(frozen=True, slots=True)
class Files:
    """Files of a guest in its state directory. During a migration two processes use the disk and the console, which is
    opened for appending. Each pod's process has its own log.
    """

    disk: Path
    console: Path
    log: Path

    @classmethod
    def of(cls, spec: GuestSpec) -> Files:
        """The files of a guest."""
        folder = spec.state_dir
        return cls(folder / "disk.qcow2", folder / "console.log", folder / f"qemu-{spec.pod.name}.log")

    def console_tail(self) -> str:
        """The last lines of the console, joined into one; "nothing" if it is empty."""
        output = self.console.read_bytes()[-400:].decode(errors="replace") if self.console.exists() else ""
        return " / ".join(line.strip() for line in output.splitlines()[-3:] if line.strip()) or "nothing"

    def rotate_console(self) -> None:
        """Keep the console of the previous boot, which may show why the guest ended. Raises ``OSError``."""
        if self.console.exists():
            self.console.replace(self.console.with_name("console-before.log"))

    def delete_empty_log(self) -> None:
        """Delete the log if it is empty: each pod of a VM leaves one. Raises ``OSError``."""
        if self.log.exists() and not self.log.stat().st_size:
            self.log.unlink()


FLAT_NETDEV: Final = "net0"
"""ID of the guest's network backend on the flat network."""
DEAF: Final = "deaf"
"""ID of the filter that drops frames for a target on a hub."""
INCOMING: Final = ("-incoming", "defer", "-S")
"""Extra arguments of a process that waits for an incoming migration and stays paused after it."""
_DROP_FILTER: Final = (
    "-chardev", "null,id=nowhere",
    "-object", f"filter-redirector,id={DEAF},netdev={FLAT_NETDEV},queue=tx,outdev=nowhere",
)  # fmt: skip


def receiving(spec: GuestSpec) -> Sequence[str]:
    """Extra arguments of the target process of a migration."""
    # A hub floods every frame, so drop frames while the guest still reads them on the source.
    is_on_hub = any(attachment.startswith("unix:") for attachment in spec.network.attachments)
    return (*INCOMING, *_DROP_FILTER) if is_on_hub else INCOMING


def qemu_command(spec: GuestSpec, image: GuestImage, accelerator: Accelerator, monitor_fd: int) -> list[str]:
    """The command of the guest's QEMU, whose monitor is the inherited socket ``monitor_fd``. Raises ``GuestError`` for
    a size or an attachment that QEMU does not support.
    """
    files = Files.of(spec)
    return [
        *_machine(f"guest={spec.vm.namespace}.{spec.vm.name}", accelerator),
        # All CPUs are present from the start and are onlined in the guest, because hot-plug crashes an emulated
        # machine.
        "-smp", str(spec.cpu_max.whole_cpus),
        *_memory(spec),
        *_kernel(image, _kernel_line(spec, accelerator)),
        "-drive", f"if=none,id=root,format=qcow2,cache=writeback,discard=unmap,file={_escaped(str(files.disk))}",
        "-device", "virtio-blk-pci,drive=root",
        *_interfaces(spec),
        "-device", "virtio-rng-pci",
        *_token(spec),
        *_channels(spec.console or files.console, monitor_fd),
        *_monitors(spec.monitors),
    ]  # fmt: skip


def inherited(spec: GuestSpec) -> list[int]:
    """File descriptors that the guest's QEMU inherits: its taps."""
    kinds = (attachment.partition(":") for attachment in spec.network.attachments)
    return [int(number) for kind, _, number in kinds if kind == "fd"]


def trial_command(image: GuestImage, accelerator: Accelerator, monitor_fd: int, console: Path) -> list[str]:
    """The command of a small machine without disk and network, which boots the image's kernel and initrd."""
    return [
        *_machine("guest=trial", accelerator),
        "-smp", "2", "-m", "256M",
        *_kernel(image, f"{_KERNEL} {accelerator.kernel}".strip()),
        *_channels(console, monitor_fd),
    ]  # fmt: skip


def _machine(name: str, accelerator: Accelerator) -> Iterator[str]:
    yield from (QEMU, "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-name", name)
    yield from ("-sandbox", SANDBOX)
    yield from ("-machine", MACHINE, *accelerator.arguments, "-device", "pvpanic-pci")


def _kernel(image: GuestImage, line: str) -> Iterator[str]:
    yield from ("-kernel", str(image.kernel), "-initrd", str(image.initrd), "-append", line)


def _channels(console: Path, monitor_fd: int) -> Iterator[str]:
    yield from ("-chardev", f"file,id=console,append=on,path={_escaped(str(console))}", "-serial", "chardev:console")
    yield from ("-chardev", f"socket,id=monitor,fd={monitor_fd}", "-mon", "chardev=monitor,mode=control")


def _token(spec: GuestSpec) -> Iterator[str]:
    # In the SMBIOS tables, because every user of the host can read a command line.
    if spec.network.token is not None:
        yield from ("-smbios", f"type=11,path={_escaped(str(spec.network.token.file))}")


def _monitors(sockets: Sequence[Path]) -> Iterator[str]:
    """Additional monitors; each serves one client at a time."""
    for number, path in enumerate(sockets):
        yield from ("-chardev", f"socket,id=more{number},server=on,wait=off,path={_escaped(str(path))}")
        yield from ("-mon", f"chardev=more{number},mode=control")


def plugged(spec: GuestSpec, use: Bytes) -> Bytes:
    """The size of the memory device for ``use``, rounded down so that the guest never gets more. Raises ``GuestError``
    if ``use`` is outside the guest's bounds.
    """
    if not spec.mem_min <= use <= spec.mem_max:
        raise GuestError(f"{spec.vm}: memory must be between {spec.mem_min} and {spec.mem_max}, not {use}")
    return (use - spec.mem_min).down_to(MEMORY_BLOCK)


def _memory(spec: GuestSpec) -> Iterator[str]:
    if not spec.mem_min.is_multiple_of(MEMORY_BLOCK):
        raise GuestError(f"{spec.vm}: the minimum memory must be a multiple of {MEMORY_BLOCK}, not {spec.mem_min}")
    # Linux plugs whole blocks, so it could not use the last one of a device that ends within a block.
    most = (spec.mem_max - spec.mem_min).up_to(_LINUX_BLOCK)
    initial = plugged(spec, spec.mem_use)
    # QEMU refuses a memory device of size zero.
    if not most:
        yield from ("-m", f"{spec.mem_min.value}B")
        return
    yield from ("-m", f"{spec.mem_min.value}B,slots=8,maxmem={(spec.mem_min + most).value}B")
    # `reserve=off`: do not reserve the maximum on the host, because most guests never use it.
    yield from ("-object", f"memory-backend-ram,id={MEMORY_DEVICE}-ram,size={most.value}B,reserve=off")
    # One virtio-mem device provides all memory above the minimum.
    yield "-device"
    yield (
        f"virtio-mem-pci,id={MEMORY_DEVICE},memdev={MEMORY_DEVICE}-ram,node=0,"
        f"requested-size={initial.value}B,block-size={MEMORY_BLOCK.value}B"
    )


def _kernel_line(spec: GuestSpec, accelerator: Accelerator) -> str:
    words = [
        _KERNEL,
        accelerator.kernel,
        # The last of two arguments with the same name counts, so the VM's own come before those that limit its size.
        *vm_arguments(spec.kernel_arguments),
        # Limits a booting guest, whose daemon onlines CPUs only later.
        f"maxcpus={spec.cpu_use.whole_cpus}",
        f"autoscale.name={spec.vm.name}",
        f"autoscale.cpu={spec.cpu_use.value}",
    ]
    if spec.address:
        words.append(f"autoscale.flat={spec.address}/{FLAT_PREFIX}")
    if spec.address and len(spec.network.attachments) > 1:
        words.append(f"autoscale.link={LINK_GUEST}/{LINK_PREFIX}")
    if spec.address and any(attachment.startswith("ports:") for attachment in spec.network.attachments):
        words.append(f"autoscale.back={LINK_POD}")
    return " ".join(word for word in words if word)


def vm_arguments(text: str) -> list[str]:
    """The kernel arguments in ``text`` that a VM may set; others are dropped.

    >>> vm_arguments("quiet maxcpus=64 autoscale.cpu=64000 autoscale.primary=10.100.128.0 -- init=/bin/sh")
    ['quiet', 'autoscale.primary=10.100.128.0', 'init=/bin/sh']
    """
    accepted: list[str] = []
    left = MAX_VM_ARGUMENTS
    for argument in text.split():
        left -= len(argument) + 1
        # The kernel truncates a command line that is too long, and our arguments are at its end.
        if left < 0:
            break
        # The kernel treats "-" and "_" in names as equal.
        name = argument.partition("=")[0].replace("-", "_")
        is_reserved = name in _RESERVED_NAMES or (name.startswith("autoscale.") and name not in _VM_NAMES)
        # No quotes: an unclosed one would include the rest of the line. No "--": the kernel parses nothing after it.
        if _ARGUMENT.fullmatch(argument) and not is_reserved:
            accepted.append(argument)
    return accepted


def _interfaces(spec: GuestSpec) -> Iterator[str]:
    """The interface on the flat network, if any, then the private link: the guest numbers them in this order."""
    for number, attachment in enumerate(spec.network.attachments):
        # Without an address the first attachment is the private link.
        is_flat = number == 0 and bool(spec.address)
        mac = flat_mac(spec.address) if is_flat else _LINK_MAC
        # The guest's driver adopts this MTU, so the guest needs no configuration for the overlay.
        mtu = f",host_mtu={spec.network.mtu}" if is_flat and spec.network.mtu else ""
        yield from ("-netdev", f"{_netdev(attachment)},id=net{number}")
        # No option ROM: with direct kernel boot it is unused, and it would have to be equal on both ends.
        yield from ("-device", f"virtio-net-pci,netdev=net{number},mac={mac},romfile={mtu}")


def _netdev(attachment: str) -> str:
    """The network backend of an attachment: ``tap:NAME``, ``fd:NUMBER`` of an inherited tap, ``unix:PATH`` of a hub,
    ``forward:ADDRESS:PORT:PORT:PORT``, or ``ports:ADDRESS:PORT=PORT,…``. The last two are private links without
    privileges, as a user-mode network of this guest. ``forward`` forwards ports of a loopback address to
    ``LINK_PORTS``, ``ports`` forwards each given port of an address to a port of the guest.
    """
    kind, _, value = attachment.partition(":")
    match kind:
        case "tap":
            return f"tap,ifname={value},script=no,downscript=no"
        case "fd":
            return f"tap,fd={value}"
        case "unix":
            # The hub listens, and the guest's QEMU connects.
            return f"stream,server=off,addr.type=unix,addr.path={_escaped(value)}"
        case "forward":
            address, *outside = value.split(":")
            ports = zip(outside, LINK_PORTS, strict=True)
            return _user_network((address, outer, str(port)) for outer, port in ports)
        case "ports":
            forwards = (forward.replace("=", ":").split(":") for forward in value.split(","))
            return _user_network((address, outer, inner) for address, outer, inner in forwards)
    raise GuestError(f"unsupported network attachment {attachment!r}")


def _user_network(forwards: Iterable[tuple[str, str, str]]) -> str:
    # `restrict`: isolated from the host and other networks. `dhcpstart`: DHCP also assigns the guest's usual address.
    forwarded = ",".join(f"hostfwd=tcp:{address}:{outer}-{LINK_GUEST}:{port}" for address, outer, port in forwards)
    network = f"net={_FORWARD_NETWORK},host={LINK_POD},dhcpstart={LINK_GUEST}"
    return f"user,ipv6=off,restrict=on,{network},{forwarded}"


def _escaped(path: str) -> str:
    """Escape a path in an option's value: a comma is doubled."""
    return path.replace(",", ",,")


def launcher(enter: Sequence[str]) -> list[str]:
    """Prefix of QEMU's command, which enters the pod's network, and ends QEMU together with this process."""
    return owned((), enter)
