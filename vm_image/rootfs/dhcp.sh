#!/bin/sh
# udhcpc's script: sets the address that NeonVM's runner offers, which udhcpc passes in the environment.
: "${ip:=}" "${mask:=24}" "${interface:=}" "${router:=}"
[ "$1" = bound ] || exit 0
ip address add "$ip/$mask" dev "$interface"
ip link set "$interface" up
[ -z "$router" ] || ip route replace default via "${router%% *}"
