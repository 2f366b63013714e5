#!/bin/sh
# disk.sh WORK BASE OURS SIZE: makes WORK/rootfs.raw of SIZE from the base tar and our own files, a tar too.
# Runs as root, or as the root of a user namespace, which cannot make devices: the guest's kernel brings its own.
set -eu
cd "$1"
trap 'rm -rf tree' EXIT
trap 'exit 143' INT TERM
mkdir tree
tar -C tree -xf "$2" --numeric-owner --exclude='./dev/*' --exclude='./boot/*'
tar -C tree -xf "$3" --numeric-owner
# Where NeonVM's kernel looks for its first program, and the scripts of its runner for theirs.
mkdir -p tree/neonvm/bin tree/neonvm/runtime
ln -s /sbin/init tree/neonvm/bin/init
for name in sh mkdir mount chmod mkswap swapon swapoff; do ln -s /bin/busybox "tree/neonvm/bin/$name"; done
for name in blkid tune2fs; do ln -s "/sbin/$name" "tree/neonvm/bin/$name"; done
mke2fs -q -t ext4 -m 0 -N 65536 -L autoscale -E lazy_itable_init=0,lazy_journal_init=0 -d tree rootfs.raw "$4"
