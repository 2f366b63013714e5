"""The VirtualMachineMigration controller: live migration of a VM from one pod to another (S4.12)."""
