#!/bin/sh
# First program of the guest: loads the virtio drivers in the order in which they need each other, and hands over to
# the init of the root disk. The first line tells whoever tries an accelerator that the machine runs this kernel.
echo "autoscale: the first program runs" >/dev/console
mount -t devtmpfs dev /dev
mount -t proc proc /proc
while read -r module; do
    insmod "/modules/$module.ko"
done </modules/order
mount -t ext4 -o rw,noatime /dev/vda /root || { echo "autoscale: the root disk cannot be mounted" >/dev/console; poweroff -f; }
umount /proc
exec switch_root /root /sbin/init
