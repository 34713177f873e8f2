"""What is drawn and told of an episode below its frames: the agent's value, and the return so far."""

from __future__ import annotations

from typing import NamedTuple

from podzero.tools.play.episode import Array, Episode

VALUE_COLOUR, RETURN_COLOUR = "#2563eb", "#059669"


class Curve(NamedTuple):
    """One number over the steps of an episode."""

    name: str
    unit: str
    """What the number counts."""
    colour: str
    heights: Array
    """`[N]` float64, one for each step from 0."""


def curves_of(episode: Episode) -> list[Curve]:
    """The agent's value, if it has any, and the return so far."""
    returns = Curve("return", "rewards so far", RETURN_COLOUR, episode.returns)
    if episode.values is None:
        return [returns]
    discount = episode.subject.discount
    unit = "rewards to come" if discount == 1.0 else f"rewards to come, discounted by {discount:g} per step"
    return [Curve("value", unit, VALUE_COLOUR, episode.values), returns]


def described(episode: Episode, step: int) -> str:
    """What is known at a step, in words."""
    parts = [f"step {step:,} of {episode.steps:,}"]
    if episode.values is not None and step < episode.steps:
        parts.append(f"value {number(episode.values[step])}")
    if step:
        parts.append(f"reward {number(episode.rewards[step - 1])}")
    return ", ".join([*parts, f"return {number(episode.returns[step])}"])


def number(value: float) -> str:
    """A value for people, in about three digits."""
    digits = 0 if abs(value) >= 1000 else 1 if abs(value) >= 10 else 2
    text = f"{value:,.{digits}f}"
    return text.removeprefix("-") if float(text.replace(",", "")) == 0 else text
