"""The folder of files that podzero keeps for later runs of the same user, and can make again."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def user_cache(environment: Mapping[str, str] = os.environ) -> Path:
    """`$XDG_CACHE_HOME/podzero`, else `~/.cache/podzero`; it may not exist yet."""
    return Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "podzero"
