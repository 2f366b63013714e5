"""A fault for each line of ``autoscale check``, and the words by which that line names it."""

from __future__ import annotations

from tests.scripts.check.cluster_faults import CLUSTER_FAULTS
from tests.scripts.check.database_faults import DATABASE_FAULTS
from tests.scripts.check.program_faults import PROGRAM_FAULTS

FAULTS = (*CLUSTER_FAULTS, *PROGRAM_FAULTS, *DATABASE_FAULTS)
