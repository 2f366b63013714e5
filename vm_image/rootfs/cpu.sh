#!/bin/sh
# cpu.sh MILLI: gives the guest so many thousandths of a CPU. Whole CPUs go on- and offline; a quota on the database's
# control group holds it to the fraction. cpu.sh without an argument prints what the guest has.
# A quota is lowered before CPUs go and raised after they came, so that no moment offers more than the larger size.
set -eu
cpus=/sys/devices/system/cpu
limit=/sys/fs/cgroup/work/cpu.max
period=100000

online() { busybox nproc; }

if [ $# -eq 0 ]; then
    read -r quota _ <$limit
    case $quota in
    max) echo $(($(online) * 1000)) ;;
    *) echo $((quota * 1000 / period)) ;;
    esac
    exit
fi

milli=$1
set -- $cpus/cpu[0-9]*
present=$#
case $milli in '' | *[!0-9]* | ??????*) echo "CPU is a whole number of thousandths of a CPU, not \"$milli\""; exit 1 ;; esac
if [ "$milli" -lt 10 ] || [ "$milli" -gt $((present * 1000)) ]; then
    echo "CPU must be between 10 and $((present * 1000)) thousandths, not $milli"
    exit 1
fi
whole=$(((milli + 999) / 1000))
quota=max
[ $((milli % 1000)) -eq 0 ] || quota=$((milli * period / 1000))
grows=no
[ "$whole" -le "$(online)" ] || grows=yes

[ "$grows" = yes ] || echo "$quota $period" >$limit
number=1
while [ $number -lt "$present" ]; do
    wanted=0
    [ $number -ge $whole ] || wanted=1
    read -r is <$cpus/cpu$number/online
    [ "$is" = "$wanted" ] || echo "$wanted" >$cpus/cpu$number/online
    number=$((number + 1))
done
[ "$grows" = no ] || echo "$quota $period" >$limit
