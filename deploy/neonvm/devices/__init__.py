"""``neonvm-devices``: device plugin for /dev/kvm and /dev/vhost-net; runs on each node."""
