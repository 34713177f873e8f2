"""The names of actions in one environment: those of its rules, or of its own simulator."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from podzero.envs.callback_errors import SimulatorError
from podzero.envs.host import HostEnv
from podzero.envs.notation import Notation, NotationError, notation_of
from podzero.envs.simulator import NamedSimulator
from podzero.protocols import Env
from podzero.types import EnvState

_SHOWN = 5
"""Names that a message lists."""


class SimulatorNames:
    """The names that a simulator gives its actions (`podzero.envs.NamedSimulator`)."""

    def __init__(self, env: HostEnv) -> None:
        """`env` must name its actions."""
        self._env = env

    def name(self, state: EnvState, action: int) -> str:
        """See `Notation`.

        Raises:
          SimulatorError: the simulator failed.
        """
        (name,) = self._names(state, [action])
        return name

    def action(self, state: EnvState, name: str) -> int:
        """See `Notation`. Only legal actions have names; an exact match is preferred to one in another case.

        Raises:
          SimulatorError: the simulator failed.
        """
        legal: list[int] = np.flatnonzero(state.view.legal).tolist()
        names = self._names(state, legal)
        wanted = "".join(name.split())
        for form in (str, str.casefold):
            if found := [action for action, one in zip(legal, names, strict=True) if form(one) == form(wanted)]:
                return found[0]
        more = ", ..." if len(names) > _SHOWN else ""
        raise NotationError(f"'{name}' is no legal move of {self._env.spec.name}: {', '.join(names[:_SHOWN])}{more}")

    def _names(self, state: EnvState, actions: Sequence[int]) -> list[str]:
        """Without white space, which separates moves."""

        def ask(simulator: NamedSimulator) -> list[str]:
            try:
                return ["".join(simulator.action_name(action).split()) for action in actions]
            except Exception as error:
                game = self._env.spec.name
                raise SimulatorError(f"{game}: action_name raised {type(error).__name__}: {error}") from error

        return self._env.ask(state, ask)


def notation_for(env: Env) -> Notation:
    """The names of actions in an environment: those of its simulator, or those of its rules."""
    return SimulatorNames(env) if isinstance(env, HostEnv) and env.names_actions else notation_of(env.spec)
