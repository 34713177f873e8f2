"""What a launch rents and whether its learner will wait: printed before it, and asked about if it mostly waits."""

from __future__ import annotations

import sys

import typer

from podzero.config import FOR_SLICES, Experiment
from podzero.errors import ConfigError
from podzero.launch.targets.plan import Plan
from podzero.tools.compile.waiting import rates

MOST_WAITING = 0.5
"""The share of the learner's time beyond which a launch asks whether it is meant."""


def summary(plan: Plan, experiment: Experiment) -> list[str]:
    """Lines for a person: the machines, their price if it is given, and how the learner's time is spent."""
    price = experiment.cluster.price_per_hour
    cost = f"{price:,.2f} an hour" if price else "not given (cluster.price_per_hour, of all machines together)"
    return [f"machines: {'; '.join(plan.machines)}", f"price: {cost}", f"learner: {_learner(experiment)}"]


def confirm(experiment: Experiment, yes: bool) -> bool:
    """Whether to launch, after a question if the learner would wait more than half of its time.

    Args:
      experiment: that is launched.
      yes: whether the answer was given beforehand.

    Raises:
      ConfigError: it would wait, and there is no terminal to ask.
    """
    found = rates(experiment)
    if found is None or found.waiting <= MOST_WAITING or yes:
        return True
    if not sys.stdin.isatty():
        raise ConfigError(
            f"the learner would wait {_share(found.waiting)} of its time, and its chips with it. {_advice(experiment)} "
            "Nothing was started; --yes starts it all the same"
        )
    print(_advice(experiment))
    return typer.confirm("Launch all the same?")


def _learner(experiment: Experiment) -> str:
    found = rates(experiment)
    if found is None:
        return "how long it will wait for actors is not known; `podzero status` shows it once the run trains"
    if found.in_turns:
        moves = f", {found.moves_per_s:,.0f} moves/s" if found.absolute else ""
        shares = f"play {1 - found.training:.0%} of the time and train {found.training:.0%} of it"
        return f"its chips {shares}{moves}; none waits ({found.source})"
    return f"it will wait {_share(found.waiting)} of its time for actors ({found.source})"


def _share(waiting: float) -> str:
    return "more than 99.9%" if waiting > 0.999 else f"{waiting:.1%}"


def _advice(experiment: Experiment) -> str:
    """How the chips would not wait."""
    return (
        "Let the slice's chips play (actors.inference=device, for games in JAX), as the experiments "
        f"{FOR_SLICES}* do, which `podzero configs` lists; or add actors."
        if experiment.actors.inference != "device"
        else "Leave out actors.resources, so that the slice's own chips play; or add actors."
    )
