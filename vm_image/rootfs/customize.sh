#!/bin/sh
# mmdebstrap runs this outside the new root ($1), as root of its namespace, after all packages are installed.
# It adds the kernel and virtio modules (under /boot) and an initialized database, and removes about 180 MB that a guest
# never uses: JIT compiler, perl and documentation.
# The result is reproducible: it contains nothing from this machine, and nothing random or time-dependent.
set -eu
root=$1
fetched=$root/tmp/fetched

# fetch PACKAGE: unpacks a package into $fetched without installing it.
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

# The wrappers in /usr/bin need perl, so they are removed; PATH has the programs themselves (see init.sh).
rm -f "$root"/usr/bin/pg_* "$root"/usr/bin/psql "$root"/usr/bin/pgbench "$root"/usr/bin/createdb "$root"/usr/bin/vacuumdb
# A private key that all guests would share, names of this machine, and package sources.
find "$root/etc/ssl" -lname '*snakeoil*' -delete -o -name '*snakeoil*' -delete
rm -f "$root"/etc/hostname "$root/etc/resolv.conf" "$root"/etc/apt/sources.list "$root"/etc/apt/sources.list.d/*
: >"$root/etc/resolv.conf"
# Of perl, only the interpreter (3.8 MB) and the two modules that monitor.pl uses are kept.
mkdir "$root/tmp/perl"
cp "$root"/usr/lib/*/perl-base/strict.pm "$root"/usr/lib/*/perl-base/warnings.pm "$root/tmp/perl"
rm -rf "$root"/usr/share/perl* "$root"/usr/lib/*/perl* "$root"/usr/bin/perl?* "$root"/usr/share/doc/* \
    "$root"/usr/share/man/* "$root"/usr/share/locale/* "$root"/usr/share/postgresql/15/man "$root"/var/cache/apt/* \
    "$root"/var/lib/apt/lists/* "$root"/var/log/*.log "$root"/var/log/apt
mkdir -p "$root/usr/lib/autoscale"
mv "$root/tmp/perl" "$root/usr/lib/autoscale/perl"
