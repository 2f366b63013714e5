"""``neonvm-runner``: runs one guest in its pod; also the resizer that the controller uses for each guest."""
