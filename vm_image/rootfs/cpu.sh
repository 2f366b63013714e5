#!/bin/sh
# cpu.sh MILLI: sets the guest's CPU in thousandths. Whole CPUs are set online or offline; a quota on the database's control
# group limits the fraction.
# The quota is set before CPUs change and removed after, so that the database never has more than the larger size.
set -eu
wanted=$1
cpus=/sys/devices/system/cpu
limit=/sys/fs/cgroup/work/cpu.max
period=100000
# shellcheck source=vm_image/rootfs/cpu-now.sh
. /usr/lib/autoscale/cpu-now.sh

set -- $cpus/cpu[0-9]*
present=$#
# Ten digits are more than any machine has, and could overflow the arithmetic below.
case $wanted in '' | 0* | *[!0-9]* | ??????????*) echo "CPU must be a whole number of thousandths of a CPU, not \"$wanted\""; exit 1 ;; esac
if [ "$wanted" -lt 10 ] || [ "$wanted" -gt $((present * 1000)) ]; then
    echo "CPU must be between 10 and $((present * 1000)) thousandths, not $wanted"
    exit 1
fi
whole=$(((wanted + 999) / 1000))
quota=max
[ $((wanted % 1000)) -eq 0 ] || quota=$((wanted * period / 1000))

[ "$quota" = max ] || echo "$quota $period" >$limit
number=1
while [ $number -lt "$present" ]; do
    plugged=0
    [ $number -ge $whole ] || plugged=1
    read -r is <$cpus/cpu$number/online
    [ "$is" = "$plugged" ] || echo "$plugged" >$cpus/cpu$number/online
    number=$((number + 1))
done
[ "$quota" != max ] || echo "$quota $period" >$limit
