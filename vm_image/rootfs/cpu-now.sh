# shellcheck shell=sh disable=SC2034 # who sources it reads what it sets
# Sourced: sets $online (CPUs) and $milli (thousandths of a CPU that the guest may use). Starts no program, because it
# answers a question that is asked all the time.
online=1
for file in /sys/devices/system/cpu/cpu[1-9]*/online; do
    [ -e "$file" ] || continue
    read -r state <"$file"
    online=$((online + state))
done
read -r quota period </sys/fs/cgroup/work/cpu.max
milli=$((online * 1000))
# A quota may be there before the CPUs that it is meant for.
[ "$quota" = max ] || [ $((quota * 1000 / period)) -gt $milli ] || milli=$((quota * 1000 / period))
