#!/bin/sh
# udhcpc's script: takes the address that NeonVM's runner offers.
[ "$1" = bound ] || exit 0
ip address add "$ip/${mask:-24}" dev "$interface"
ip link set "$interface" up
[ -z "$router" ] || ip route replace default via "${router%% *}"
