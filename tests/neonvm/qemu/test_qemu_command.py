"""The command line of a guest: what a migration must find equal, sizes, and attachments."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from deploy.neonvm.addressing import flat_mac
from deploy.neonvm.ports import DaemonToken, GuestError, GuestSpec
from deploy.neonvm.qemu.accelerator import Accelerator
from deploy.neonvm.qemu.qemu_command import SANDBOX, plugged, qemu_command, trial_command
from protocol.units import Bytes, MilliCpu
from tests.neonvm.qemu.fakes import MIB, spec_in
from vm_image.build import GuestImage

IMAGE = GuestImage(Path("/image/vmlinuz"), Path("/image/initrd"), Path("/image/rootfs.raw"))
TCG = Accelerator("tcg", ("-accel", "tcg"), "tsc=reliable", "a test")


def options(spec: GuestSpec) -> list[tuple[str, str]]:
    """The command as pairs of option and value; an option without a value has an empty one."""
    words = qemu_command(spec, IMAGE, TCG, monitor_fd=7)[1:]
    return [
        (word, "" if after.startswith("-") else after)
        for word, after in zip(words, [*words[1:], "-"], strict=True)
        if word.startswith("-")
    ]


def values(spec: GuestSpec, option: str) -> list[str]:
    return [value for name, value in options(spec) if name == option]


def test_the_whole_command_of_a_guest(tmp_path: Path) -> None:
    assert options(spec_in(tmp_path)) == [
        ("-nodefaults", ""),
        ("-no-user-config", ""),
        ("-no-reboot", ""),
        ("-display", "none"),
        ("-name", "guest=default.db"),
        ("-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"),
        ("-machine", "pc-q35-7.2"),
        ("-accel", "tcg"),
        ("-device", "pvpanic-pci"),
        ("-smp", "4"),
        ("-m", f"{256 * MIB}B,slots=8,maxmem={2048 * MIB}B"),
        ("-object", f"memory-backend-ram,id=vm0-ram,size={1792 * MIB}B,reserve=off"),
        (
            "-device",
            f"virtio-mem-pci,id=vm0,memdev=vm0-ram,node=0,requested-size={256 * MIB}B,block-size={2 * MIB}B",
        ),
        ("-kernel", "/image/vmlinuz"),
        ("-initrd", "/image/initrd"),
        (
            "-append",
            "console=ttyS0 quiet loglevel=3 mitigations=off nokaslr oops=panic panic=-1 reboot=t psi=1 "
            "memhp_default_state=online memory_hotplug.online_policy=auto-movable "
            "memory_hotplug.auto_movable_ratio=801 random.trust_cpu=on swiotlb=noforce tsc=reliable maxcpus=1 "
            "autoscale.name=db autoscale.cpu=1000 autoscale.flat=10.100.128.1/16 autoscale.link=10.255.255.254/30",
        ),
        ("-drive", f"if=none,id=root,format=qcow2,cache=writeback,discard=unmap,file={tmp_path}/disk.qcow2"),
        ("-device", "virtio-blk-pci,drive=root"),
        ("-netdev", "tap,ifname=flat0,script=no,downscript=no,id=net0"),
        ("-device", "virtio-net-pci,netdev=net0,mac=52:54:00:64:80:01,romfile="),
        ("-netdev", "tap,ifname=link0,script=no,downscript=no,id=net1"),
        ("-device", "virtio-net-pci,netdev=net1,mac=02:00:0a:ff:ff:fe,romfile="),
        ("-device", "virtio-rng-pci"),
        ("-chardev", f"file,id=console,append=on,path={tmp_path}/console.log"),
        ("-serial", "chardev:console"),
        ("-chardev", "socket,id=monitor,fd=7"),
        ("-mon", "chardev=monitor,mode=control"),
    ]


def test_rootless_guest_uses_hub_and_forward(tmp_path: Path) -> None:
    spec = spec_in(tmp_path)
    hub = replace(
        spec, network=replace(spec.network, attachments=("unix:/run/a,b/c0", "forward:127.70.1.0:19100:25183:25185"))
    )
    assert values(hub, "-netdev") == [
        "stream,server=off,addr.type=unix,addr.path=/run/a,,b/c0,id=net0",
        "user,ipv6=off,restrict=on,net=10.255.255.0/24,host=10.255.255.253,dhcpstart=10.255.255.254,"
        "hostfwd=tcp:127.70.1.0:19100-10.255.255.254:9100,hostfwd=tcp:127.70.1.0:25183-10.255.255.254:25183,"
        "hostfwd=tcp:127.70.1.0:25185-10.255.255.254:25185,id=net1",
    ]


def test_daemon_token_is_not_an_argument(tmp_path: Path) -> None:
    """Every user of the machine can read the command line of a process."""
    spec = spec_in(tmp_path)
    token = DaemonToken("secret", Path("/run/a,b/token"))
    assert values(replace(spec, network=replace(spec.network, token=token)), "-smbios") == [
        "type=11,path=/run/a,,b/token"
    ]
    assert values(spec, "-smbios") == []


def test_no_link_arguments_without_private_link(tmp_path: Path) -> None:
    spec = spec_in(tmp_path)
    flat = replace(spec, network=replace(spec.network, attachments=("tap:flat0",)))
    assert "autoscale.link" not in values(flat, "-append")[0]


def test_kernel_command_line_can_be_extended(tmp_path: Path) -> None:
    spec = replace(spec_in(tmp_path), kernel_arguments="autoscale.primary=10.100.128.0")
    assert " autoscale.primary=10.100.128.0 maxcpus=" in values(spec, "-append")[0]


@pytest.mark.parametrize(
    "words",
    [
        "maxcpus=2 autoscale.cpu=2000",
        "nr_cpus=64 possible-cpus=64 nr-cpus=64",
        "autoscale.flat=10.100.128.9/17 autoscale.name=other autoscale.link=10.0.0.1/30 autoscale.back=10.0.0.2",
        "-- maxcpus=2",
        '"maxcpus=2" a="b',
        "a\nautoscale.cpu=2000\u00a0b\x00c",
        "x" * 5000,
        "x=1 " * 5000,
    ],
)
def test_vm_cannot_replace_our_kernel_words(tmp_path: Path, words: str) -> None:
    """``maxcpus=2 autoscale.cpu=2000`` once gave a guest two CPUs at ``use: 250m``."""
    spec = spec_in(tmp_path)
    line = values(replace(spec, kernel_arguments=f"quiet {words}"), "-append")[0]
    ours = values(spec, "-append")[0].partition(" maxcpus=")
    own = line.removeprefix(ours[0]).removesuffix(f"{ours[1]}{ours[2]}")
    assert line == f"{ours[0]}{own}{ours[1]}{ours[2]}"
    assert own.split()[0] == "quiet"
    assert not any(word in own for word in ("maxcpus=2 ", "autoscale.", "cpus=", " -- ", '"', "\n"))
    assert len(line) < 2048


def test_an_attachment_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    spec = spec_in(tmp_path)
    with pytest.raises(GuestError, match="unsupported network attachment 'wifi:home'"):
        qemu_command(replace(spec, network=replace(spec.network, attachments=("wifi:home",))), IMAGE, TCG, 7)


def test_fractional_cpu_boots_one_with_quota(tmp_path: Path) -> None:
    line = values(spec_in(tmp_path, cpu_use=MilliCpu(1250), cpu_max=MilliCpu(3500)), "-append")[0]
    assert "maxcpus=2 " in line
    assert "autoscale.cpu=1250 " in line
    assert values(spec_in(tmp_path, cpu_max=MilliCpu(3500)), "-smp") == ["4"]


def test_device_rounds_up_to_memory_blocks(tmp_path: Path) -> None:
    spec = spec_in(tmp_path, mem_max=Bytes(400 * MIB), mem_use=Bytes(301 * MIB))
    assert values(spec, "-m") == [f"{256 * MIB}B,slots=8,maxmem={512 * MIB}B"]
    assert plugged(spec, spec.mem_use) == Bytes(44 * MIB)


def test_fixed_memory_needs_no_device(tmp_path: Path) -> None:
    same = Bytes(512 * MIB)
    spec = spec_in(tmp_path, mem_min=same, mem_max=same, mem_use=same)
    assert values(spec, "-m") == [f"{512 * MIB}B"]
    assert values(spec, "-object") == []


def test_unsupported_memory_is_refused(tmp_path: Path) -> None:
    odd = Bytes(255 * MIB)
    with pytest.raises(GuestError, match="must be a multiple of 2Mi, not 255Mi"):
        qemu_command(spec_in(tmp_path, mem_min=odd), IMAGE, TCG, 7)


def test_the_mac_is_the_vms_alone() -> None:
    macs = {flat_mac(f"10.100.{third}.{last}") for third in (128, 129) for last in range(256)}
    assert len(macs) == 512


def test_trial_boots_without_disk_and_network() -> None:
    command = trial_command(IMAGE, TCG, 7, Path("/tmp/a,b/console"))  # noqa: S108 - nothing is written
    assert command == [
        *("qemu-system-x86_64", "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"),
        *(
            "-name",
            "guest=trial",
            "-sandbox",
            SANDBOX,
            "-machine",
            "pc-q35-7.2",
            "-accel",
            "tcg",
            "-device",
            "pvpanic-pci",
        ),
        *("-smp", "2", "-m", "256M", "-kernel", "/image/vmlinuz", "-initrd", "/image/initrd", "-append"),
        "console=ttyS0 quiet loglevel=3 mitigations=off nokaslr oops=panic panic=-1 reboot=t psi=1 "
        "memhp_default_state=online memory_hotplug.online_policy=auto-movable "
        "memory_hotplug.auto_movable_ratio=801 random.trust_cpu=on swiotlb=noforce tsc=reliable",
        *("-chardev", "file,id=console,append=on,path=/tmp/a,,b/console", "-serial", "chardev:console"),
        *("-chardev", "socket,id=monitor,fd=7", "-mon", "chardev=monitor,mode=control"),
    ]
