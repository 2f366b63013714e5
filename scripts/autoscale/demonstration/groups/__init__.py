"""The third act of the demonstration: a read load grows a replica, then adds one, and both go back (S1.12)."""
