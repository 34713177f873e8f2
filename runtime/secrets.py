"""Environment variables of the driver that all processes of a run get, such as a key to a service.

Their values travel as an argument of the processes. They are not in Ray's `runtime_env`, which Ray writes into its
logs, nor in the working directory, nor in the arguments of a program, which `ps` shows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from podzero.core.errors import ConfigError
from podzero.runtime.cluster.preflight import RUN_VARIABLE
from podzero.runtime.program import CPU_ONLY

_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)


def read_secrets(names: Iterable[str], environment: Mapping[str, str]) -> dict[str, str]:
    """The values of environment variables, by name.

    Raises:
      ConfigError: a name is none, its variable is not set, or podzero or Ray sets it; the message has no value.
    """
    found = {}
    for name in names:
        if "=" in name:
            raise ConfigError(
                f"--env {name.partition('=')[0]}=...: expected a name alone, since others could see a value there; "
                "export the variable before, and give its name"
            )
        if not _NAME.fullmatch(name):
            raise ConfigError(f"--env {name}: expected the name of an environment variable, such as API_KEY")
        if name in CPU_ONLY or name == RUN_VARIABLE or name.startswith("RAY_"):
            raise ConfigError(f"--env {name}: podzero and Ray set this variable themselves for each process")
        if name not in environment:
            raise ConfigError(f"--env {name}: this variable is not set here; set it before: export {name}=VALUE")
        found[name] = environment[name]
    return found
