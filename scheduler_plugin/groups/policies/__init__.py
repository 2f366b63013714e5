"""From a group's objects to what to write: each kind's policy behind one interface, and what is common to all. Pure."""
