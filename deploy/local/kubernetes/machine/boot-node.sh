#!/bin/sh
# The first process of a node: it makes the node's own view of this machine's files, and then reaps what is orphaned.
#
# Usage: boot-node.sh FOLDER IMAGES NAME=PROGRAMS...
# It runs in namespaces of its own (network, mounts, processes); with its end all that it made and all that runs there
# is gone. FOLDER has the node's files: node/ (settings), var/, tmp/, etc/.
set -eu
folder=$1 images=$2
shift 2

mkdir -p "$folder/run" "$folder/tmp" "$folder/etc" "$folder/etc-work" \
  "$folder/var/lib/kubelet" "$folder/var/lib/containerd" "$folder/var/lib/cni" "$folder/var/log/pods" "$folder/var/tmp"
ln -sfn /run "$folder/var/run"
chmod 1777 "$folder/tmp" "$folder/var/tmp"

# All is gathered under a /run of the node's own first: what is mounted afterwards may hide the folder's own place.
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

# A kubelet sets these for the whole machine unless they have the value that it wants: it is shown that value.
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

# A node may offer more CPUs than the machine has. Its kubelet counts the CPUs of all memory nodes, so it is shown some
# more memory nodes, with the same CPUs: their numbers must be real, for it names them to the kernel.
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
# Pods may pass mounts on to the node, as they may on any; they reach no further than this node.
mount --make-rshared /
touch /run/autoscale/booted

trap : TERM
while :; do
  sleep 1000000 &
  wait $! || true
done
