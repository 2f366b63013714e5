#!/bin/sh
# Init process of the guest. Its settings are on the kernel command line:
#   autoscale.flat=ADDRESS/PREFIX   this VM's address on the flat network, on the first interface
#   autoscale.gateway=ADDRESS       gateway of the flat network, optional
#   autoscale.link=ADDRESS/PREFIX   address on the private link to the pod, on the second interface, optional
#   autoscale.back=ADDRESS          gateway on that link, for clients outside the pod
#   autoscale.cpu=MILLI             initial CPU in thousandths
#   autoscale.name=NAME             host name
#   autoscale.primary=ADDRESS       primary from which the database streams as a standby
# Without autoscale.cpu, NeonVM's own runner has started the guest: it provides a disk with settings (neonvm.sh) and addresses
# by DHCP, hot-plugs CPUs (plugged.sh), and stops the guest with the power button.
#
# Rules: nothing polls often (waking five times a second costs a third of an emulated core); monitoring and resizing have
# priority over the database (nice); each service is restarted when it ends.
export PATH=/usr/lib/postgresql/15/bin:/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8
here=/usr/lib/autoscale

mountpoint -q /proc || mount -t proc -o nosuid,nodev,noexec proc /proc
mountpoint -q /dev || mount -t devtmpfs dev /dev
mount -t sysfs -o nosuid,nodev,noexec sys /sys
mkdir -p /dev/shm /dev/pts
mount -t tmpfs -o nosuid,nodev shm /dev/shm
mount -t devpts pts /dev/pts
mount -t tmpfs -o nosuid,nodev,mode=755 run /run
mount -t tmpfs -o nosuid,nodev tmp /tmp
mount -t cgroup2 -o nosuid,nodev,noexec cgroup /sys/fs/cgroup

read -r settings </proc/cmdline
for setting in $settings; do
    case $setting in
    autoscale.flat=*) flat=${setting#*=} ;;
    autoscale.gateway=*) gateway=${setting#*=} ;;
    autoscale.link=*) link=${setting#*=} ;;
    autoscale.back=*) back=${setting#*=} ;;
    autoscale.cpu=*) cpu=${setting#*=} ;;
    autoscale.name=*) busybox hostname "${setting#*=}" ;;
    autoscale.primary=*) primary=${setting#*=} ;;
    maxcpus=*) switched=yes ;;
    esac
done

ip link set lo up
if [ -n "$flat" ]; then
    ip address add "$flat" dev eth0
    ip link set eth0 up
    [ -z "$gateway" ] || ip route add default via "$gateway"
    [ -z "$link" ] || { ip address add "$link" dev eth1 && ip link set eth1 up; }
    [ -z "$back" ] || ip route add default via "$back" dev eth1 metric 1000
else
    [ -n "$cpu" ] || sh "$here/neonvm.sh"
    for interface in /sys/class/net/eth*; do
        ip link set "${interface##*/}" up
        [ -z "$(ip -4 -o address show dev "${interface##*/}")" ] || continue # the kernel has set it: ip= on its command line
        busybox udhcpc -q -n -t 5 -i "${interface##*/}" -s "$here/dhcp.sh"
    done
fi

for controller in cpu memory pids; do echo +$controller >/sys/fs/cgroup/cgroup.subtree_control; done
mkdir -p /sys/fs/cgroup/work
# A quota on an empty group. The kernel patches its code when the first quota is set and the last one removed; an emulated
# CPU may then run stale code, trap on a removed breakpoint, and hang. So there is always a quota.
mkdir -p /sys/fs/cgroup/quota && echo "100000 100000" >/sys/fs/cgroup/quota/cpu.max
[ -z "$cpu" ] || sh "$here/cpu.sh" "$cpu"
# After a power failure, it still says that the previous server is ready.
rm -f /var/lib/postgresql/data/postmaster.pid
mkdir -p /run/udev/data /run/postgresql && chown postgres:postgres /run/postgresql
busybox mkfifo -m 600 /run/autoscale.ask /run/autoscale.sleep /run/autoscale.quiet /run/autoscale.spare /run/autoscale.freeze
mkdir -p /run/autoscale.metrics

# The daemon resizes the guest, so if there is a private link, it listens only there. An address alone does not ensure that:
# Linux accepts packets for the address of one interface on all others, and a neighbour on the flat network can send them.
bind=${link%/*}
device=${link:+eth1}
forever() { while :; do "$@"; echo "autoscale: \"$*\" has ended; restarting it" | busybox cut -c -100; busybox sleep 1; done; }
# If the DMI tables contain a token, clients must send it: then all users of the host can reach the guest.
tables=/sys/firmware/dmi/tables/DMI
[ ! -r $tables ] || token=$(busybox tr -c 'a-z0-9.=' '\n' <$tables | busybox sed -n 's/^autoscale\.token=//p')
AUTOSCALE_TOKEN=${token:-} forever nice -n -10 socat "TCP-LISTEN:25183,fork,reuseaddr${bind:+,bind=$bind,so-bindtodevice=$device}" "EXEC:busybox ash $here/daemon.sh,nofork" &
forever nice -n -10 sh "$here/database.sh" &
# shellcheck disable=SC2086 # an empty address must not be an argument
AUTOSCALE_DEVICE=$device forever nice -n -15 perl "-I$here/perl" "$here/monitor.pl" $bind &
[ -z "$cpu" ] || AUTOSCALE_TOKEN=${token:-} AUTOSCALE_DEVICE=$device AUTOSCALE_AT=${bind:-0.0.0.0}:25185 forever nice -n -10 perl "-I$here/perl" "$here/sleep.pl" &
GOMAXPROCS=1 forever nice -n -5 setpriv --reuid prometheus --regid prometheus --clear-groups \
    prometheus-node-exporter --web.listen-address=:9100 \
    --web.disable-exporter-metrics --no-collector.arp --no-collector.bcache --no-collector.bonding --no-collector.btrfs --no-collector.dmi \
    --no-collector.edac --no-collector.entropy --no-collector.fibrechannel --no-collector.hwmon \
    --no-collector.infiniband --no-collector.ipvs --no-collector.mdadm --no-collector.nfs --no-collector.nfsd \
    --no-collector.nvme --no-collector.rapl --no-collector.tapestats --no-collector.thermal_zone --no-collector.zfs \
    --collector.vmstat.fields='^(oom_kill|pgpg|pswp|pg.*fault|pgscan|workingset_refault).*' \
    --collector.textfile.directory=/run/autoscale.metrics --log.level=warn &
forever sh "$here/postgres.sh" "$primary" &
# With NeonVM's own runner, the owner mounts a Secret with the password as a disk. Our runner sends it (daemon.sh).
[ ! -f /etc/autoscale/secret/password ] || {
    AUTOSCALE_PASSWORD=$(cat /etc/autoscale/secret/password)
    export AUTOSCALE_PASSWORD
    until sh "$here/password.sh" >/dev/null 2>&1; do busybox sleep 2; done
    echo "autoscale: the database has its password"
} &
if [ -z "$cpu" ]; then
    [ -n "$switched" ] || { forever busybox uevent sh "$here/plugged.sh" & sh "$here/plugged.sh"; }
    [ ! -e /dev/input/event0 ] || forever busybox acpid -d & # runs /etc/acpi/PWRF/00000080
fi
echo "autoscale: services are started"

# Waiting for these jobs also reaps orphaned processes, as an init process must.
while :; do wait; done
