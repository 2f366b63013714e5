"""The measurements that decisions rest on (docs/benches.md)."""
