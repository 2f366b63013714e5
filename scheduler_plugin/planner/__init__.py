"""Plans migrations, so that full nodes lose VMs before any VM is denied (S4.8, S4.9). Pure."""
