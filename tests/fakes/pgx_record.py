"""Random games of pgx, recorded once so that the fast tests need not compile pgx's rules.

`python tests/fakes/pgx_record.py` writes `pgx_games.npz` anew, for another version of pgx or more games. Each ply has
the actions of all games, what chance decided, and a digest of what pgx showed after it.
"""

import warnings
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pgx
from pgx.go import Go

from podzero.envs.boards.backgammon import Backgammon
from podzero.envs.boards.play_2048 import Play2048
from podzero.envs.jax_libraries import PgxGame

FILE = Path(__file__).with_name("pgx_games.npz")
PLIES = {"connect_four": 42, "othello": 80, "hex": 122, "go_7x7": 98, "go_9x9": 162}
"""The recorded games without chance, and how many plies the longest of them lasts."""
CHANCE_PLIES = {"backgammon": 1500, "2048": 400}
GAMES = 32
"""Games that are played together."""


def pgx_game(name):
    """The game of pgx, which has rules of Go for every size but names for two."""
    if name != "go_7x7":
        return PgxGame(name)
    make, pgx.make = pgx.make, lambda _: Go(size=7)
    try:
        return PgxGame(name)
    finally:
        pgx.make = make


def starts(env):
    """The beginnings of the games, which differ in who moves first."""
    return jax.vmap(env.init)(jax.random.split(jax.random.key(0), GAMES))


def flat(*fields):
    """Arrays of one position as one vector of float32."""
    return jnp.concatenate([jnp.asarray(field).astype(jnp.float32).reshape(-1) for field in fields])


def digests(plies):
    """A number for each of T plies of B games that are vectors `[T, B, n]`."""
    # The sum makes zeros of negative zeros.
    return np.array([zlib.crc32((np.asarray(ply) + np.float32(0)).tobytes()) for ply in plies])


def shown(view):
    """What a view shows, as a vector; all actions of a game that is over are legal. pgx tells no owners of squares."""
    return flat(*view._replace(legal=view.legal | view.done)[:-1])


def random_action(key, legal):
    return jax.random.categorical(key, jnp.where(legal, 0.0, -jnp.inf)).astype(jnp.int32)


def recorded(name):
    """Actions `[T, B]` of random games of pgx, and digests `[T + 1]` of what it shows."""
    theirs = pgx_game(name)

    def seen(states):
        return jax.vmap(lambda state: shown(theirs.view(state)))(states)

    def ply(states, key):
        action = random_action(key, jax.vmap(theirs.view)(states).legal)
        after = jax.vmap(theirs.step)(states, action)
        return after, (action, seen(after))

    @jax.jit
    def play():
        start = starts(theirs)
        last, (actions, views) = jax.lax.scan(ply, start, jax.random.split(jax.random.key(1), PLIES[name]))
        return actions, jnp.concatenate([seen(start)[None], views]), jax.vmap(theirs.view)(last).done

    actions, views, done = jax.device_get(play())
    assert done.all(), name
    return {"actions": actions.astype(np.int16), "digests": digests(views)}


class Paired(NamedTuple):
    """Our game of chance beside that of pgx."""

    game: Any
    converted: Any
    """Ours from a state of pgx."""
    drawn: Any
    """`(our afterstate, pgx's next state)` to the outcome between them."""
    board: Any
    """What pgx's state has on the board, as the fields of ours that `fields` names."""
    fields: tuple[str, ...]

    def ours(self, position):
        """What we show of a position, as a vector; boards of games that are over are left out."""
        view = self.game.view(position)
        board = [jnp.where(view.done, 0, getattr(position, field)) for field in self.fields]
        return flat(*board, view.legal, view.player, view.rewards, view.done)

    def theirs(self, state):
        """The same of a state of pgx."""
        over = state.terminated
        board = [jnp.where(over, 0, part) for part in self.board(state)]
        rewards = jnp.append(state.rewards, 0.0)[:2]
        return flat(*board, state.legal_action_mask | over, state.current_player, rewards, over)


def paired(name):
    """The pair of a game of chance."""
    if name == "2048":
        game = Play2048(1.0)

        def board(state):
            return [jnp.argmax(state.observation, axis=-1).astype(jnp.int8)]

        def converted(state):
            return game.init(jax.random.key(0))._replace(board=board(state)[0])

        def drawn(after, state):
            boards = jax.vmap(lambda tile: game.resolve(after, tile).board)(jnp.arange(game.outcomes))
            return jnp.argmax(jnp.all(boards == board(state)[0], axis=(1, 2)) & (game.chance(after) > 0))

        return Paired(game, converted, drawn, board, ("board",))
    game = Backgammon(1.0)

    def board(state):
        # pgx shows the dice as counts.
        return [state.observation[:28].astype(jnp.int8), state.observation[..., -6:].astype(jnp.int8)]

    def converted(state):
        places, dice = board(state)
        return game.init(jax.random.key(0))._replace(board=places, dice=dice, player=state.current_player)

    def drawn(after, state):
        counts = jax.vmap(lambda roll: game.resolve(after, roll).dice)(jnp.arange(game.outcomes))
        return jnp.argmax(jnp.all(counts == board(state)[1], axis=-1))

    return Paired(game, converted, drawn, board, ("board", "dice"))


def resolved(game, position, action, outcome):
    """Our position after an action and, where chance decides, an outcome; and whether that is possible."""
    after = game.step(position, action)
    probabilities = game.chance(after)
    waits = jnp.any(probabilities > 0)
    reached = jax.tree.map(lambda one, other: jnp.where(waits, one, other), game.resolve(after, outcome), after)
    return reached, ~waits | (probabilities[outcome] > 0)


def chance_game(name, games, seed=0):
    """Random games of pgx with chance, played by our rules too.

    Returns our starts, and NumPy arrays: actions and outcomes `[T, B]`, what pgx and we show `[T, B, n]`, and `[T, B]`
    whether the outcomes are possible and whether the games are over.
    """
    pair, theirs = paired(name), pgx.make(name)

    def ply(carry, key):
        ours, state = carry
        choose_key, draw_key = jax.random.split(key)
        action = random_action(choose_key, pair.game.view(ours).legal)
        state = theirs.step(state, action, draw_key)
        outcome = pair.drawn(pair.game.step(ours, action), state)
        ours, possible = resolved(pair.game, ours, action, outcome)
        return (ours, state), (action, outcome, pair.theirs(state), pair.ours(ours), possible, state.terminated)

    @jax.jit
    @jax.vmap
    def play(key):
        start, *_ = keys = jax.random.split(key, CHANCE_PLIES[name] + 1)
        state = theirs.init(start)
        begun = pair.converted(state)
        return begun, jax.lax.scan(ply, (begun, state), keys[1:])[1]

    begun, found = jax.device_get(play(jax.random.split(jax.random.key(seed), games)))
    return begun, *(np.swapaxes(field, 0, 1) for field in found)


def recorded_chance(name):
    """Starts, actions, outcomes and digests of random games of pgx with chance."""
    begun, actions, outcomes, theirs, _, _, over = chance_game(name, GAMES // 4)
    assert over[-1].mean() > 0.8, name
    fields = {f"start/{field}": value for field, value in begun._asdict().items()}
    return {
        **fields, "actions": actions.astype(np.int16), "outcomes": outcomes.astype(np.int8), "digests": digests(theirs)
    }  # fmt: skip


def main():
    """Writes the file."""
    warnings.simplefilter("ignore")
    arrays = {}
    for name in (*PLIES, *CHANCE_PLIES):
        found = recorded(name) if name in PLIES else recorded_chance(name)
        arrays |= {f"{name}/{field}": value for field, value in found.items()}
        np.savez_compressed(FILE, **arrays)
        print(name, flush=True)


if __name__ == "__main__":
    main()
