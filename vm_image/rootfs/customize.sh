#!/bin/sh
# mmdebstrap runs this outside the new root ($1), as the root of its namespace, after all packages are installed.
# It adds what the guest boots from (kernel and virtio modules under /boot) and an initialised database, and takes
# away what a database guest never runs: about 180 MB of JIT compiler, perl and documentation.
set -eu
root=$1
postgres=/usr/lib/postgresql/15

kernel=$(APT_CONFIG=$MMDEBSTRAP_APT_CONFIG apt-cache depends --no-recommends --no-suggests linux-image-cloud-amd64 |
    sed -n 's/.*Depends: \(linux-image-[0-9].*\)/\1/p' | head -n 1)
mkdir -p "$root/tmp/kernel" "$root/boot"
(cd "$root/tmp/kernel" && APT_CONFIG=$MMDEBSTRAP_APT_CONFIG apt-get -o APT::Sandbox::User=root download "$kernel")
dpkg-deb -x "$root"/tmp/kernel/*.deb "$root/tmp/kernel"
cp "$root"/tmp/kernel/boot/vmlinuz-* "$root/boot/vmlinuz"
mkdir -p "$root/boot/modules"
for module in virtio virtio_ring virtio_pci virtio_pci_modern_dev virtio_pci_legacy_dev virtio_mmio virtio_blk failover \
    net_failover virtio_net virtio_mem virtio-rng pvpanic pvpanic-pci; do
    find "$root/tmp/kernel/lib/modules" -name "$module.ko" -exec cp {} "$root/boot/modules/" \;
done
rm -rf "$root/tmp/kernel"

rm -rf "$root/var/lib/postgresql" "$root/etc/postgresql"
mkdir -p "$root/var/lib/postgresql"
chroot "$root" chown postgres:postgres /var/lib/postgresql
chroot "$root" setpriv --reuid postgres --regid postgres --init-groups env LC_ALL=C.UTF-8 \
    $postgres/bin/initdb --no-sync --auth=trust --username=postgres --encoding=UTF8 --pgdata=/var/lib/postgresql/data \
    >/dev/null
# Who standbys copy and stream as.
echo "CREATE ROLE replicator REPLICATION LOGIN" | chroot "$root" setpriv --reuid postgres --regid postgres --init-groups \
    env LC_ALL=C.UTF-8 $postgres/bin/postgres --single -D /var/lib/postgresql/data postgres >/dev/null

# The wrappers in /usr/bin are perl: without perl they go, and the real programs come first in PATH (see init.sh).
rm -f "$root"/usr/bin/pg_* "$root"/usr/bin/psql "$root"/usr/bin/pgbench "$root"/usr/bin/createdb "$root"/usr/bin/vacuumdb
# Of perl the interpreter alone stays (3.8 MB), with the two modules that monitor.pl names.
mkdir "$root/tmp/perl"
cp "$root"/usr/lib/*/perl-base/strict.pm "$root"/usr/lib/*/perl-base/warnings.pm "$root/tmp/perl"
rm -rf "$root"/usr/share/perl* "$root"/usr/lib/*/perl* "$root"/usr/bin/perl?* "$root"/usr/share/doc/* \
    "$root"/usr/share/man/* "$root"/usr/share/locale/* "$root"/usr/share/postgresql/15/man "$root"/var/cache/apt/* \
    "$root"/var/lib/apt/lists/* "$root"/var/log/*.log "$root"/var/log/apt
mkdir -p "$root/usr/lib/autoscale"
mv "$root/tmp/perl" "$root/usr/lib/autoscale/perl"
