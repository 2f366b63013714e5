#!/bin/sh
# The init process of a node: it sets up the node's mounts and then reaps orphans.
#
# Usage: boot-node.sh FOLDER IMAGES NAME=PROGRAMS...
# It runs in new mount and PID namespaces; the kernel removes both when it ends. FOLDER has the node's files: node/
# (settings), var/, tmp/, etc/.
set -eu
folder=$1 images=$2
shift 2

mkdir -p "$folder/run" "$folder/tmp" "$folder/etc" "$folder/etc-work" \
  "$folder/var/lib/kubelet" "$folder/var/lib/containerd" "$folder/var/lib/cni" "$folder/var/log/pods" "$folder/var/tmp"
ln -sfn /run "$folder/var/run"
chmod 1777 "$folder/tmp" "$folder/var/tmp"

# Bind everything into the node's /run first: the mounts on /tmp and /var may hide FOLDER itself.
mount -t tmpfs -o mode=755 autoscale "$folder/run"
here=$folder/run/autoscale
mkdir -p "$here/node" "$here/images" "$here/tmp" "$here/var" "$folder/run/netns" "$folder/run/lock"
mount --bind "$folder/node" "$here/node"
mount --bind "$images" "$here/images"
mount --bind "$folder/tmp" "$here/tmp"
mount --bind "$folder/var" "$here/var"
for each in "$@"; do
  mkdir -p "$here/programs/${each%%=*}"
  mount --bind "${each#*=}" "$here/programs/${each%%=*}"
done
mount -t overlay overlay -o "lowerdir=/etc,upperdir=$folder/etc,workdir=$folder/etc-work" /etc
mount --rbind "$folder/run" /run
mount --bind /run/autoscale/tmp /tmp
mount --bind /run/autoscale/var /var

# A kubelet changes these sysctls machine-wide unless they already have its values, so show it those values.
tunable() {
  [ -e "/proc/sys/$1" ] || return 0
  file=/run/autoscale/tunables/$1
  mkdir -p "${file%/*}"
  echo "$2" > "$file"
  mount --bind "$file" "/proc/sys/$1"
}
tunable vm/overcommit_memory 1
tunable vm/panic_on_oom 0
tunable kernel/panic 10
tunable kernel/panic_on_oops 1
tunable kernel/keys/root_maxkeys 1000000
tunable kernel/keys/root_maxbytes 25000000

# A node may have more CPUs than the machine. The kubelet counts the CPUs of all NUMA nodes, so show it more NUMA nodes
# with the same CPUs. The CPU numbers must be real, because the kubelet passes them to the kernel.
cpus=$(cat /run/autoscale/node/cpus)
if [ "$cpus" -gt "$(getconf _NPROCESSORS_ONLN)" ]; then
  shown=/run/autoscale/memory-nodes number=0
  while [ "$cpus" -gt 0 ]; do
    mkdir -p "$shown/node$number/hugepages"
    cp /sys/devices/system/node/node0/meminfo /sys/devices/system/node/node0/distance "$shown/node$number"
    for each in /sys/devices/system/cpu/cpu[0-9]*; do
      if [ "$cpus" -gt 0 ] && { [ ! -e "$each/online" ] || [ "$(cat "$each/online")" = 1 ]; }; then
        ln -s "$each" "$shown/node$number"
        cpus=$((cpus - 1))
      fi
    done
    number=$((number + 1))
  done
  mount --bind "$shown" /sys/devices/system/node
fi

echo 1 > /proc/sys/net/ipv4/ip_forward
mkdir -p /etc/cni/net.d
cp /run/autoscale/node/cni/* /etc/cni/net.d/
# Pods may propagate mounts to the node (mountPropagation: Bidirectional), but not beyond it.
mount --make-rshared /
touch /run/autoscale/booted

trap : TERM
while :; do
  sleep 1000000 &
  wait $! || true
done
