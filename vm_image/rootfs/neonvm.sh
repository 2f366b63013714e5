#!/bin/sh
# neonvm.sh: what NeonVM's own runner hands to a guest on its second disk, beside addresses: kernel settings, disks to
# mount, swap. Arguments and environment of the database are there too (postgres.sh). mounts.sh calls programs of
# /neonvm/bin (disk.sh).
runtime=/neonvm/runtime
resize2fs /dev/vda 2>/dev/null # the disk may have been made larger than the image
[ -b /dev/vdb ] || exit 0
mount -o ro /dev/vdb $runtime || exit
[ ! -f $runtime/sysctl.conf ] || busybox sysctl -q -p $runtime/sysctl.conf
[ ! -f $runtime/mounts.sh ] || /neonvm/bin/sh $runtime/mounts.sh
