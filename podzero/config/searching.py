"""The section of tree search."""

from __future__ import annotations

from typing import Literal

import pydantic
from pydantic import PositiveFloat, PositiveInt

from podzero.config.section import Fraction, Section


class SearchConfig(Section):
    """Tree search in self-play. Evaluation uses the same search without exploration noise."""

    algorithm: Literal["gumbel", "puct"] = "gumbel"
    """`gumbel` is Gumbel AlphaZero/MuZero (Danihelka et al. 2022); `puct` is the search of AlphaZero and MuZero."""
    simulations: PositiveInt = 32
    """Simulations per move."""
    max_considered_actions: PositiveInt = 16
    """Gumbel: actions that enter sequential halving at the root."""
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
    first_play_urgency: Literal["loss", "parent"] = "loss"
    """PUCT: the Q-value of an action before its first visit. `loss` is the least possible value, as in AlphaZero: where
    many actions are equally likely, most are never tried. `parent` is the mean value of the node so far."""

    @pydantic.model_validator(mode="after")
    def _only_dense_trees_have_slots(self) -> SearchConfig:
        if self.slots is not None and self.tree != "dense":
            raise ValueError("slots limits the actions of dense trees: set tree=dense as well")
        return self
