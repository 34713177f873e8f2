"""The section of tree search."""

from __future__ import annotations

from typing import Literal

import pydantic
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt

from podzero.config.section import Fraction, Section


class SearchConfig(Section):
    """Tree search in self-play. Evaluation uses the same search without exploration noise."""

    algorithm: Literal["gumbel", "puct"] = "gumbel"
    """`gumbel` is Gumbel AlphaZero/MuZero (Danihelka et al. 2022); `puct` is the search of AlphaZero and MuZero."""
    simulations: PositiveInt = 32
    """Simulations per move."""
    fast_simulations: PositiveInt = 8
    """Simulations of the moves that are searched fast (`actors.full_search_share`)."""
    first_simulations: PositiveInt | None = None
    """Games: simulations per move of self-play when training begins; they double until they are `simulations`. So
    a network that knows little plays more games (progressive simulation, Wu et al. 2023, MiniZero). By default
    self-play has `simulations` from the start."""
    growth_steps: PositiveInt = 10_000
    """Learner steps until self-play has `simulations`; each number before it is used for an equal part of them."""
    max_considered_actions: PositiveInt = 16
    """Gumbel: actions that enter sequential halving at the root."""
    inner_selection: Literal["gumbel", "puct"] = "gumbel"
    """Gumbel: which rule selects actions below the root. `gumbel` brings the visits of a node nearest to its improved
    policy (Danihelka et al. 2022, section 5); `puct` is the rule of the algorithm `puct`."""
    root_value: Literal["mean", "action", "policy", "network"] | None = None
    """Value of a searched root, for value targets and `analyze`: `mean` over all visits, the Q-value of the chosen
    `action`, the mean of completed Q-values under the improved `policy`, or that of the `network` alone. By default
    `policy` for Gumbel, whose sequential halving visits bad actions as well, and `mean` for PUCT."""
    q_scale: Literal["node", "tree", "bounds"] | None = None
    """Gumbel: what Q-values are divided by: the range of a `node`'s Q-values, the range of all values in the `tree`, or
    the range between the known `bounds` of a board game's values. By default `node` for games and `tree` for MuZero."""
    min_value_range: PositiveFloat | None = None
    """Gumbel: lower bound of the range of a node or a tree by which Q-values are divided, so that the policy does not
    follow the errors of values where all actions are equally good. In units of values. By default 0.2 for games of two
    players, whose outcomes are 1 and -1, and 0.01 otherwise."""
    value_scale: PositiveFloat = 0.1
    """Gumbel: weight of scaled Q-values beside logits, per visit (`c_scale` of Danihelka et al. 2022)."""
    maxvisit_init: NonNegativeFloat = 50.0
    """Gumbel: visits that are added to those of the most visited action (`c_visit`)."""
    dirichlet_concentration: PositiveFloat = 10.0
    """PUCT: concentration of the Dirichlet noise at the root, divided evenly among the legal actions."""
    dirichlet_fraction: Fraction = 0.25
    """PUCT: weight of the Dirichlet noise in the root's prior."""
    tree: Literal["mctx", "dense"] = "mctx"
    """How trees are stored and updated: `mctx` walks along the path of each game, which suits CPUs; `dense` updates
    all nodes of all games in each operation, which suits TPUs and GPUs. The results are the same up to rounding. With
    `actors.inference=device` the default is `dense`."""
    slots: PositiveInt | None = None
    """With `tree=dense`: actions that a node holds, at most; of more legal ones those with the largest prior. By
    default all actions, of which chess has 4,672."""
    candidates: PositiveInt = 16
    """Continuous actions: actions sampled from the policy at each node; the search chooses among them."""
    pb_c_init: PositiveFloat = 1.25
    """PUCT: constant `c1` of the exploration term (Schrittwieser et al. 2020, appendix B)."""
    pb_c_base: PositiveFloat = 19652.0
    """PUCT: constant `c2` of the exploration term."""
    first_play_urgency: Literal["loss", "parent"] = "loss"
    """PUCT: the Q-value of an action before its first visit. `loss` is the least possible value, as in AlphaZero: where
    many actions are equally likely, most are never tried. `parent` is the mean value of the node so far."""
    first_play_reduction: NonNegativeFloat = 0.0
    """PUCT, with `first_play_urgency=parent`: what is taken from the parent's value, times the square root of the prior
    that the visited actions have together (KataGo, Leela Chess Zero). In units of scaled Q-values, from 0 for a loss
    to 1 for a win; never below a loss."""

    @property
    def growth(self) -> list[int]:
        """The numbers of simulations of self-play, one after the other; the last is `simulations`."""
        stages = [self.first_simulations or self.simulations]
        while stages[-1] < self.simulations:
            stages.append(min(2 * stages[-1], self.simulations))
        return stages

    def simulations_at(self, step: int, fast: bool = False) -> int:
        """The simulations of a move of self-play, or of a fast one, with the parameters of that learner step."""
        if fast:
            return self.fast_simulations
        stages = self.growth
        return stages[min(step * (len(stages) - 1) // self.growth_steps, len(stages) - 1)]

    @pydantic.model_validator(mode="after")
    def _only_dense_trees_have_slots(self) -> SearchConfig:
        if self.slots is not None and self.tree != "dense":
            raise ValueError("slots limits the actions of dense trees: set tree=dense as well")
        return self

    @pydantic.model_validator(mode="after")
    def _a_reduction_is_from_the_value_of_the_parent(self) -> SearchConfig:
        if self.first_play_reduction and self.first_play_urgency != "parent":
            raise ValueError("first_play_reduction needs the parent's value: set first_play_urgency=parent as well")
        return self

    @pydantic.model_validator(mode="after")
    def _simulations_grow(self) -> SearchConfig:
        if self.first_simulations is not None and self.first_simulations > self.simulations:
            raise ValueError(
                f"first_simulations {self.first_simulations} is larger than simulations {self.simulations}"
            )
        return self
