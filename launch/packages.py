"""Packages of one's own that the nodes of a run get (`podzero train --with`)."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version

from packaging.requirements import InvalidRequirement, Requirement

from podzero.core.errors import ConfigError


def own_packages(requirements: Iterable[str], joins: bool, installs: bool) -> tuple[str, ...]:
    """The requirements of the packages for the nodes: those of `--with`, in the versions that this machine has.

    Args:
      requirements: what `--with` names.
      joins: whether the run joins a Ray cluster.
      installs: whether podzero installs the environments of its nodes (`cluster.install_environment`).

    Raises:
      ConfigError: podzero installs no environment, or a requirement is none or not met on this machine.
    """
    return tuple(_pinned(text, joins, installs) for text in requirements)


def _pinned(text: str, joins: bool, installs: bool) -> str:
    by_hand = f"`uv pip install {shlex.quote(text)}`"
    if not joins:
        raise ConfigError(
            f"--with {text}: this run has one machine, and uses the packages that are installed here. Install it with "
            f"{by_hand}, and leave --with out; with --address and cluster.install_environment=true, nodes get it"
        )
    if not installs:
        raise ConfigError(
            f"--with {text}: this run uses the packages that each node has. Set cluster.install_environment=true, or "
            f"run {by_hand} on every node and leave --with out"
        )
    try:
        wanted = Requirement(text)
    except InvalidRequirement:
        raise ConfigError(f"--with {text}: expected a requirement, such as pettingzoo==1.25") from None
    try:
        found = version(wanted.name)
    except PackageNotFoundError:
        raise ConfigError(
            f"--with {text}: {wanted.name} is not installed here, where the experiment's code is checked before it "
            f"runs on nodes; install it here too: {by_hand}"
        ) from None
    if not wanted.specifier.contains(found, prereleases=True):
        raise ConfigError(
            f"--with {text}: version {found} of {wanted.name} is installed here, and the nodes must have the same; "
            f"install the one that you want: {by_hand}"
        )
    if wanted.url is not None:
        return text
    extras = f"[{','.join(sorted(wanted.extras))}]" if wanted.extras else ""
    return f"{wanted.name}{extras}=={found}"
