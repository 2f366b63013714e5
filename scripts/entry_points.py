"""Console scripts of the wheel. If a package is missing, they name the extra to install."""

from __future__ import annotations

import sys
from functools import partial
from importlib import import_module
from typing import Final

_MISSING: Final = 69
"""EX_UNAVAILABLE of sysexits.h; our programs do not use it otherwise."""
_INTERRUPTED: Final = 130
"""128 and the number of SIGINT, as shells have it."""


def start(program: str, extra: str) -> object:
    """Call ``program`` (``module:function``). Exits with 69 if an imported package is not installed."""
    module, _, function = program.partition(":")
    try:
        return getattr(import_module(module), function)()
    except KeyboardInterrupt:
        # Programs handle it themselves once their modules are imported, which can take seconds.
        sys.exit(_INTERRUPTED)
    except ModuleNotFoundError as error:
        # An error without a module name, or for a module of our own package, is a bug and not a missing extra.
        if error.name is None or error.name.partition(".")[0] == module.partition(".")[0]:
            raise
        needed = f"autoscaling[{extra}]" if extra else "autoscaling"
        command = sys.argv[0].rpartition("/")[2]
        print(f"{command}: the module {error.name} is missing; run: pip install '{needed}'", file=sys.stderr)
        sys.exit(_MISSING)


autoscale = partial(start, "scripts.autoscale.main:main", "cli")
kubectl_autoscaling = partial(start, "scripts.autoscale.main:plugin", "cli")
kubectl_complete = partial(start, "scripts.autoscale.main:complete", "cli")
autoscaler_agent = partial(start, "agent.__main__:main", "")
autoscale_scheduler = partial(start, "scheduler_plugin.__main__:main", "scheduler")
autoscale_groups = partial(start, "scheduler_plugin.groups.__main__:main", "scheduler")
autoscale_dashboard = partial(start, "scheduler_plugin.dashboard.__main__:main", "scheduler")
autoscale_expander = partial(start, "scheduler_plugin.expander.__main__:main", "expander")
autoscale_injector = partial(start, "scheduler_plugin.injector.__main__:main", "injector")
neonvm_controller = partial(start, "deploy.neonvm.service.__main__:main", "neonvm")
neonvm_devices = partial(start, "deploy.neonvm.devices.__main__:main", "neonvm")
neonvm_network = partial(start, "deploy.neonvm.overlay.__main__:main", "neonvm")
neonvm_runner = partial(start, "deploy.neonvm.runner.__main__:main", "runner")
