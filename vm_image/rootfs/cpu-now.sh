# shellcheck shell=sh disable=SC2034 # read by the scripts that source it
# Sourced: sets $online (number of CPUs) and $milli (usable thousandths of a CPU). It starts no programs, because it runs
# very often.
online=1
for file in /sys/devices/system/cpu/cpu[1-9]*/online; do
    [ -e "$file" ] || continue
    read -r state <"$file"
    online=$((online + state))
done
read -r quota period </sys/fs/cgroup/work/cpu.max
milli=$((online * 1000))
# The quota may be larger while cpu.sh has not set the CPUs online yet.
[ "$quota" = max ] || [ $((quota * 1000 / period)) -gt $milli ] || milli=$((quota * 1000 / period))
