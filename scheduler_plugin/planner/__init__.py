"""Planning of moves: nodes that fill up shed VMs before anyone is denied (S4.8, S4.9). Pure."""
