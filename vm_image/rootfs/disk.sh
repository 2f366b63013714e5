#!/bin/sh
# disk.sh WORK BASE OWN SIZE UUID: creates WORK/rootfs.raw with SIZE from the base tar and the tar of our own files.
# Runs as root, if need be of a user namespace, which cannot create devices; the guest's devtmpfs has them.
# The result is reproducible: the file system is created with the guest's programs, and times later than SOURCE_DATE_EPOCH
# are set to it. mke2fs copies two of an inode's times from the unpacked tree, where they cannot be set.
set -eu
umask 022
cd "$1"
trap 'rm -rf tree' EXIT
trap 'exit 143' INT TERM
mkdir tree
tar -C tree -xf "$2" --numeric-owner --exclude='./dev/*' --exclude='./boot/*'
tar -C tree -xf "$3" --numeric-owner
# Paths of the init process of NeonVM's kernel, and of programs for the scripts of its runner.
mkdir -p tree/neonvm/bin tree/neonvm/runtime
ln -s /sbin/init tree/neonvm/bin/init
for name in sh mkdir mount chmod mkswap swapon swapoff; do ln -s /bin/busybox "tree/neonvm/bin/$name"; done
for name in blkid tune2fs; do ln -s "/sbin/$name" "tree/neonvm/bin/$name"; done
find tree -newermt "@$SOURCE_DATE_EPOCH" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +

export E2FSPROGS_FAKE_TIME="$SOURCE_DATE_EPOCH" MKE2FS_CONFIG=tree/etc/mke2fs.conf
inodes=65536
of_guest() {
    program=tree/sbin/$1
    shift
    tree/lib64/ld-linux-x86-64.so.2 --library-path tree/lib/x86_64-linux-gnu:tree/usr/lib/x86_64-linux-gnu "$program" "$@"
}
of_guest mke2fs -q -t ext4 -m 0 -N $inodes -L autoscale -U "$5" -E "lazy_itable_init=0,lazy_journal_init=0,hash_seed=$5" \
    -d tree rootfs.raw "$4"
free=$(of_guest dumpe2fs -h rootfs.raw 2>&1 | sed -n 's/^Free inodes: *//p')
[ -n "$free" ]
last=$((inodes - free))
for inode in 2 $(seq 11 $last); do
    printf "set_inode_field <$inode> %s @$SOURCE_DATE_EPOCH\n" ctime atime
done | of_guest debugfs -w -f - rootfs.raw >/dev/null
# debugfs does not report errors in its exit code.
of_guest debugfs -R "stat <$last>" rootfs.raw 2>/dev/null | grep -q "ctime: 0x$(printf %x "$SOURCE_DATE_EPOCH"):"
of_guest e2fsck -fn rootfs.raw
