"""A whole cluster in one process, in which VMs move and everything that can fail does."""

import pytest

pytest.register_assert_rewrite("tests.local.moving.world")
