#!/bin/sh
# plugged.sh [FOLDER]: sets every CPU online. With NeonVM's QmpScaling, CPUs are hot-plugged and the guest must set them
# online; "busybox uevent" runs this for each hardware change. With SysfsScaling (maxcpus=), all CPUs exist from the start,
# and only daemon.sh sets them online.
case "${SUBSYSTEM:-cpu} ${ACTION:-add}" in "cpu add") ;; *) exit 0 ;; esac
for file in "${1:-/sys/devices/system/cpu}"/cpu[1-9]*/online; do
    [ -e "$file" ] || continue
    read -r is <"$file"
    [ "$is" = 1 ] || echo 1 >"$file"
done
