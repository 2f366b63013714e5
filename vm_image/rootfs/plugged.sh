#!/bin/sh
# plugged.sh [FOLDER]: switches on every CPU that is there. NeonVM's QmpScaling plugs CPUs in and leaves that to the
# guest; "busybox uevent" runs this for each change of the machine. With SysfsScaling (maxcpus=) CPUs are there from the
# start, and daemon.sh alone switches them.
case "${SUBSYSTEM:-cpu} ${ACTION:-add}" in "cpu add") ;; *) exit 0 ;; esac
for file in "${1:-/sys/devices/system/cpu}"/cpu[1-9]*/online; do
    [ -e "$file" ] || continue
    read -r is <"$file"
    [ "$is" = 1 ] || echo 1 >"$file"
done
