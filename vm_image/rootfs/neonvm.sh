#!/bin/sh
# neonvm.sh: applies settings of NeonVM's own runner from the guest's second disk: sysctls, mounts, swap. It also has the
# database's arguments and environment (postgres.sh). mounts.sh uses programs in /neonvm/bin (disk.sh).
runtime=/neonvm/runtime
resize2fs /dev/vda 2>/dev/null # the disk may be larger than the image
[ -b /dev/vdb ] || exit 0
mount -o ro /dev/vdb $runtime || exit
[ ! -f $runtime/sysctl.conf ] || busybox sysctl -q -p $runtime/sysctl.conf
[ ! -f $runtime/mounts.sh ] || /neonvm/bin/sh $runtime/mounts.sh
