"""VMs as such: NeonVM's controllers, the guests themselves, and the networks that they are plugged into."""
