#!/bin/sh
# Init process of the initrd: loads the virtio drivers in the order of their dependencies, and starts the init of the root
# disk. Its first line shows tests of accelerators that the kernel has booted.
echo "autoscale: the first program runs" >/dev/console
mount -t devtmpfs dev /dev
mount -t proc proc /proc
while read -r module; do
    insmod "/modules/$module.ko"
done </modules/order
mount -t ext4 -o rw,noatime /dev/vda /root || { echo "autoscale: the root disk cannot be mounted" >/dev/console; poweroff -f; }
umount /proc
exec switch_root /root /sbin/init
