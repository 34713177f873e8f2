"""Agents on the Hugging Face hub: `hf:USER/NAME` is a model repository with the files of a working directory."""

from __future__ import annotations

import re
from functools import cache

from podzero.core.errors import ConfigError
from podzero.core.importing import import_extra
from podzero.files.workdir import Workdir

HUB = "hf:"
"""Prefix of the names of these agents."""
_FILES = ("experiment.yaml", "metrics.jsonl", "hardware.json", "code/*", "snapshots/*")
_NAME = re.compile(r"hf:([\w.-]+/[\w.-]+)(?:@([\w./-]+))?")


def repository(name: str) -> tuple[str, str | None]:
    """The repository and the revision (a branch, tag or commit) of `hf:USER/NAME` or `hf:USER/NAME@REVISION`."""
    if (found := _NAME.fullmatch(name)) is None:
        raise ConfigError(f"'{name}': expected hf:USER/NAME, or hf:USER/NAME@REVISION for a branch, tag or commit")
    return found[1], found[2]


@cache
def hub_workdir(name: str) -> Workdir:
    """The working directory of an agent on the hub, in the hub's cache; without a network, what the cache has.

    As with every agent, snapshots are checked by their digests, and its own code is imported only with the user's
    consent.
    """
    repo, revision = repository(name)
    hub = import_extra("huggingface_hub", f"'{name}'", "hub")
    try:
        folder = hub.snapshot_download(repo, revision=revision, allow_patterns=list(_FILES))
    # Its errors, those of the network among them, have no common base class.
    except Exception as error:
        raise ConfigError(f"'{name}' cannot be downloaded: {error}; check name, network and HF_TOKEN") from None
    workdir = Workdir(folder)
    if not workdir.is_run:
        raise ConfigError(f"'{name}' is no agent of podzero: the repository holds no experiment.yaml")
    return workdir
