#!/bin/sh
# mmdebstrap runs this outside the new root ($1), as the root of its namespace, after all packages are installed.
# It adds what the guest boots from (kernel and virtio modules under /boot) and an initialised database, and takes
# away what a database guest never runs: about 180 MB of JIT compiler, perl and documentation.
# Equal packages give an equal root: nothing of this machine, of chance or of the time is left in it.
set -eu
root=$1
fetched=$root/tmp/fetched

# fetch PACKAGE: unpacks a package into $fetched that is not to be installed.
fetch() {
    (cd "$fetched" && APT_CONFIG=$MMDEBSTRAP_APT_CONFIG apt-get -o APT::Sandbox::User=root download "$1")
    dpkg-deb -x "$fetched/$1"_*.deb "$fetched"
}

mkdir -p "$fetched" "$root/boot/modules"
kernel=$(APT_CONFIG=$MMDEBSTRAP_APT_CONFIG apt-cache depends --no-recommends --no-suggests linux-image-cloud-amd64 |
    sed -n 's/.*Depends: \(linux-image-[0-9].*\)/\1/p' | head -n 1)
fetch "$kernel"
cp "$fetched"/boot/vmlinuz-* "$root/boot/vmlinuz"
for module in virtio virtio_ring virtio_pci virtio_pci_modern_dev virtio_pci_legacy_dev virtio_mmio virtio_blk failover \
    net_failover virtio_net virtio_mem virtio-rng pvpanic pvpanic-pci; do
    find "$fetched/lib/modules" -name "$module.ko" -exec cp {} "$root/boot/modules/" \;
done
fetch libfaketime
library=$(find "$fetched" -name libfaketime.so.1)
[ -n "$library" ]
sh "${0%/*}/initdb.sh" "$root" "${library#"$root"}"
rm -rf "$fetched"

# The wrappers in /usr/bin are perl: without perl they go, and the real programs come first in PATH (see init.sh).
rm -f "$root"/usr/bin/pg_* "$root"/usr/bin/psql "$root"/usr/bin/pgbench "$root"/usr/bin/createdb "$root"/usr/bin/vacuumdb
# A key that all guests share, names of this machine, and where its packages came from.
find "$root/etc/ssl" -lname '*snakeoil*' -delete -o -name '*snakeoil*' -delete
rm -f "$root"/etc/hostname "$root/etc/resolv.conf" "$root"/etc/apt/sources.list "$root"/etc/apt/sources.list.d/*
: >"$root/etc/resolv.conf"
# Of perl the interpreter alone stays (3.8 MB), with the two modules that monitor.pl names.
mkdir "$root/tmp/perl"
cp "$root"/usr/lib/*/perl-base/strict.pm "$root"/usr/lib/*/perl-base/warnings.pm "$root/tmp/perl"
rm -rf "$root"/usr/share/perl* "$root"/usr/lib/*/perl* "$root"/usr/bin/perl?* "$root"/usr/share/doc/* \
    "$root"/usr/share/man/* "$root"/usr/share/locale/* "$root"/usr/share/postgresql/15/man "$root"/var/cache/apt/* \
    "$root"/var/lib/apt/lists/* "$root"/var/log/*.log "$root"/var/log/apt
mkdir -p "$root/usr/lib/autoscale"
mv "$root/tmp/perl" "$root/usr/lib/autoscale/perl"
