#!/bin/sh
# udhcpc's script: takes the address that NeonVM's runner offers.
# udhcpc hands the offer over in its environment.
: "${ip:=}" "${mask:=24}" "${interface:=}" "${router:=}"
[ "$1" = bound ] || exit 0
ip address add "$ip/$mask" dev "$interface"
ip link set "$interface" up
[ -z "$router" ] || ip route replace default via "${router%% *}"
