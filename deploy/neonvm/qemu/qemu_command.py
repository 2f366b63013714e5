"""The command line of one QEMU guest (pure).

What must be equal on both ends of a migration comes from the VM alone, never from the pod: its address gives its MAC.
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
"""NeonVM's own controller knows the device by this name."""
MEMORY_BLOCK: Final = Bytes(2 * 1024**2)
"""What virtio-mem's size is a multiple of."""

_LINUX_BLOCK: Final = Bytes(128 * 1024**2)
"""Linux on x86 adds memory in blocks of this size; the device is rounded up to it, the order is not."""

_FORWARD_NETWORK: Final = "10.255.255.0/24"
"""QEMU's user-mode network wants room for addresses of its own beside the two of the link."""

_LINK_MAC: Final = "02:00:0a:ff:ff:fe"
_MOVABLE_RATIO: Final = 801
"""Plugged memory that only programs may use, in per cent of what the kernel may use too; NeonVM has the same.

Such movable memory can always be unplugged, but cannot hold kernel data: page tables, and the 1/64 of new
memory that describes its pages. If all of it were movable, a guest that grows far beyond its boot memory would run out
of kernel memory and kill its database.
"""
# `panic=-1` and `reboot=t` turn a panic into an end of QEMU, which is launched with -no-reboot.
_KERNEL: Final = (
    "console=ttyS0 quiet loglevel=3 mitigations=off nokaslr oops=panic panic=-1 reboot=t psi=1 "
    "memhp_default_state=online memory_hotplug.online_policy=auto-movable "
    f"memory_hotplug.auto_movable_ratio={_MOVABLE_RATIO} random.trust_cpu=on swiotlb=noforce"
)
LONGEST_OWN_WORDS: Final = 1024
"""Characters: Linux on x86 takes a line of 2,047, of which ours have about 500."""

SANDBOX: Final = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"
"""System calls that a guest which has taken over its QEMU does without: programs, other users, other CPUs."""

_WORD: Final = re.compile(r"[!#-~]+")
_OUR_NAMES: Final = frozenset({"__", "maxcpus", "nr_cpus", "possible_cpus"})
_NAMES_FOR_VMS: Final = frozenset({KERNEL_PRIMARY, "autoscale.gateway"})


@dataclass(frozen=True, slots=True)
class Files:
    """Files of a guest in its state directory. While it moves two processes use disk and console: the console is
    appended to, and that of the previous boot stays. Each pod's process has a log of its own.
    """

    disk: Path
    console: Path
    log: Path

    @classmethod
    def of(cls, spec: GuestSpec) -> Files:
        """The files of a guest."""
        folder = spec.state_dir
        return cls(folder / "disk.qcow2", folder / "console.log", folder / f"qemu-{spec.pod.name}.log")

    def console_said(self) -> str:
        """The console's last lines as one; "nothing" if there are none."""
        output = self.console.read_bytes()[-400:].decode(errors="replace") if self.console.exists() else ""
        return " / ".join(line.strip() for line in output.splitlines()[-3:] if line.strip()) or "nothing"

    def begin_console(self) -> None:
        """Keeps the previous console: it shows why the guest ended. Raises ``OSError``."""
        if self.console.exists():
            self.console.replace(self.console.with_name("console-before.log"))


FLAT_NETDEV: Final = "net0"
"""QEMU's name for the guest's place on the flat network."""
DEAF: Final = "deaf"
EMPTY: Final = ("-incoming", "defer", "-S")
"""Extra arguments of a process that waits to be filled, and then for the order to run."""
_DROPPED: Final = (
    "-chardev", "null,id=nowhere",
    "-object", f"filter-redirector,id={DEAF},netdev={FLAT_NETDEV},queue=tx,outdev=nowhere",
)  # fmt: skip


def receiving(spec: GuestSpec) -> Sequence[str]:
    """Extra arguments of a process that receives a guest: it waits to be filled, then for the order to run."""
    # A hub sends it every frame from the beginning; it must drop what its guest reads elsewhere.
    is_on_hub = any(attachment.startswith("unix:") for attachment in spec.network.attachments)
    return (*EMPTY, *_DROPPED) if is_on_hub else EMPTY


def qemu_command(spec: GuestSpec, image: GuestImage, accelerator: Accelerator, monitor_fd: int) -> list[str]:
    """The QEMU process of ``spec``, whose monitor is the inherited socket ``monitor_fd``. Raises ``GuestError`` for a
    size or an attachment that QEMU cannot be given.
    """
    files = Files.of(spec)
    return [
        *_machine(f"guest={spec.vm.namespace}.{spec.vm.name}", accelerator),
        # All CPUs are there from the start and are switched inside the guest: hot-plug crashes an emulated machine.
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
    """Descriptors of this process that the guest's QEMU uses: its taps."""
    kinds = (attachment.partition(":") for attachment in spec.network.attachments)
    return [int(number) for kind, _, number in kinds if kind == "fd"]


def trial_command(image: GuestImage, accelerator: Accelerator, monitor_fd: int, console: Path) -> list[str]:
    """A small machine without disk and network that boots the image as guests do, as far as its first program."""
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
    # In the machine's SMBIOS tables, because every user of the machine can read a command line.
    if spec.network.token is not None:
        yield from ("-smbios", f"type=11,path={_escaped(str(spec.network.token.file))}")


def _monitors(sockets: Sequence[Path]) -> Iterator[str]:
    """Each takes one client at a time and any number in turn."""
    for number, path in enumerate(sockets):
        yield from ("-chardev", f"socket,id=more{number},server=on,wait=off,path={_escaped(str(path))}")
        yield from ("-mon", f"chardev=more{number},mode=control")


def plugged(spec: GuestSpec, use: Bytes) -> Bytes:
    """The part of ``use`` that the memory device must provide, so that the guest never gets more than ``use``. Raises
    ``GuestError`` if ``use`` is outside of the guest's bounds.
    """
    if not spec.mem_min <= use <= spec.mem_max:
        raise GuestError(f"{spec.vm}: memory must be between {spec.mem_min} and {spec.mem_max}, not {use}")
    return (use - spec.mem_min).down_to(MEMORY_BLOCK)


def _memory(spec: GuestSpec) -> Iterator[str]:
    if not spec.mem_min.is_multiple_of(MEMORY_BLOCK):
        raise GuestError(f"{spec.vm}: the least memory must be a multiple of {MEMORY_BLOCK}, not {spec.mem_min}")
    # Linux plugs whole blocks; a device that ends within one could not be used up.
    most = (spec.mem_max - spec.mem_min).up_to(_LINUX_BLOCK)
    initial = plugged(spec, spec.mem_use)
    # QEMU refuses a memory device of size zero.
    if not most:
        yield from ("-m", f"{spec.mem_min.value}B")
        return
    yield from ("-m", f"{spec.mem_min.value}B,slots=8,maxmem={(spec.mem_min + most).value}B")
    # `reserve=off`: the host need not have the maximum, which most guests never use.
    yield from ("-object", f"memory-backend-ram,id={MEMORY_DEVICE}-ram,size={most.value}B,reserve=off")
    # One virtio-mem device has all memory above the minimum.
    yield "-device"
    yield (
        f"virtio-mem-pci,id={MEMORY_DEVICE},memdev={MEMORY_DEVICE}-ram,node=0,"
        f"requested-size={initial.value}B,block-size={MEMORY_BLOCK.value}B"
    )


def _kernel_line(spec: GuestSpec, accelerator: Accelerator) -> str:
    words = [
        _KERNEL,
        accelerator.kernel,
        # Of two words of one name the later one counts, so the VM's own come before those that size it.
        *own_words(spec.kernel_arguments),
        # Keeps a booting guest from having more than it may use: its daemon switches CPUs only later.
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


def own_words(text: str) -> list[str]:
    """The words that a VM may add to its guest's kernel command line; what it may not is left out.

    >>> own_words("quiet maxcpus=64 autoscale.cpu=64000 autoscale.primary=10.100.128.0 -- init=/bin/sh")
    ['quiet', 'autoscale.primary=10.100.128.0', 'init=/bin/sh']
    """
    accepted: list[str] = []
    left = LONGEST_OWN_WORDS
    for word in text.split():
        left -= len(word) + 1
        # The kernel cuts a line that is too long, and our words stand at its end.
        if left < 0:
            break
        # No quotes: an open one would swallow the rest of the line. "--" is refused too, because the kernel parses
        # nothing after it.
        if _WORD.fullmatch(word) and not _is_ours(word.partition("=")[0].replace("-", "_")):
            accepted.append(word)
    return accepted


def _is_ours(name: str) -> bool:
    # The kernel treats "-" and "_" in names as equal, so the caller has replaced the former.
    return name in _OUR_NAMES or (name.startswith("autoscale.") and name not in _NAMES_FOR_VMS)


def _interfaces(spec: GuestSpec) -> Iterator[str]:
    """The flat network first, then the private link, each if there is one: the guest numbers them in this order."""
    for number, attachment in enumerate(spec.network.attachments):
        # Without an address the first attachment is the private link.
        is_flat = number == 0 and bool(spec.address)
        mac = flat_mac(spec.address) if is_flat else _LINK_MAC
        # The guest's driver adopts this MTU, so nothing in the guest has to know the overlay.
        mtu = f",host_mtu={spec.network.mtu}" if is_flat and spec.network.mtu else ""
        yield from ("-netdev", f"{_netdev(attachment)},id=net{number}")
        # No option ROM: a directly booted guest does not need one, and it would have to be equal on both ends.
        yield from ("-device", f"virtio-net-pci,netdev=net{number},mac={mac},romfile={mtu}")


def _netdev(attachment: str) -> str:
    """The network backend of an attachment: ``tap:NAME``, ``fd:NUMBER`` of a tap that is inherited, ``unix:PATH`` of a
    hub, ``forward:ADDRESS:PORT:PORT:PORT``, or ``ports:ADDRESS:PORT=PORT,…``. The last two are a private link without
    privileges: a user-mode network of this guest alone. Its ports for pods (``LINK_PORTS``) are forwarded from these of
    a loopback address; or each named port from one of an address.
    """
    kind, _, place = attachment.partition(":")
    match kind:
        case "tap":
            return f"tap,ifname={place},script=no,downscript=no"
        case "fd":
            return f"tap,fd={place}"
        case "unix":
            # The hub listens; a guest that starts connects to its cable.
            return f"stream,server=off,addr.type=unix,addr.path={_escaped(place)}"
        case "forward":
            address, *outside = place.split(":")
            ports = zip(outside, LINK_PORTS, strict=True)
            return _user_network((address, outer, str(port)) for outer, port in ports)
        case "ports":
            forwards = (forward.replace("=", ":").split(":") for forward in place.split(","))
            return _user_network((address, outer, inner) for address, outer, inner in forwards)
    raise GuestError(f"a guest cannot be plugged into {attachment!r}")


def _user_network(forwards: Iterable[tuple[str, str, str]]) -> str:
    # `restrict`: nothing in it leads out. A guest that asks for an address by DHCP gets its usual one.
    forwarded = ",".join(f"hostfwd=tcp:{address}:{outer}-{LINK_GUEST}:{port}" for address, outer, port in forwards)
    network = f"net={_FORWARD_NETWORK},host={LINK_POD},dhcpstart={LINK_GUEST}"
    return f"user,ipv6=off,restrict=on,{network},{forwarded}"


def _escaped(path: str) -> str:
    """A path as an option's value: QEMU reads a doubled comma as one."""
    return path.replace(",", ",,")


def launcher(enter: Sequence[str]) -> list[str]:
    """Prefix of QEMU's command: the way into the pod's network, and the order to die together with its owner."""
    return owned((), enter)
