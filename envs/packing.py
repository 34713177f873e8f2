"""Packs game states and training samples into rows of bytes and unpacks them, on hosts (NumPy) and on devices (JAX).

First the states, without loss, and arrays as bytes. Then the samples, one row a sample, which is written once by the
actor and read once by the train step. Bools are bits, policies float16, integers as small as their range allows. Where
the packed state of a game is much smaller than its observation and legal actions, the row of a sample holds the state,
and the train step computes both from it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from podzero.config import Experiment, JaxGameConfig
from podzero.config.samples import sample_like, stored_state_like
from podzero.core.errors import ConfigError
from podzero.core.protocols import Env
from podzero.core.types import Array, EnvSpec, EnvState, Sample, StoredState, Window


def packed_bytes(like: EnvState) -> int:
    """Bytes of one packed state; `like` is a state or its shapes, such as `jax.eval_shape(env.init, key)`."""
    return sum(form_bytes(form.shape, form.dtype) for form in map(_form, jax.tree.leaves(like)))


def pack_states(states: EnvState) -> jax.Array:
    """Packs B states (a leading axis on every leaf) into `[B, S]` uint8, without loss; traceable.

    A row is the concatenation of the leaves in tree order: bools as bits, others in the byte order of the machine.
    """
    return jnp.concatenate([to_bytes(plain(leaf), jnp) for leaf in jax.tree.leaves(states)], axis=1)


def unpack_states(rows: Array, like: EnvState) -> EnvState:
    """Unpacks B states from `rows` `[B, S]` uint8; `like` is a state of the same game, or its shapes. Traceable."""
    assert rows.shape[1:] == (packed_bytes(like),), (rows.shape, packed_bytes(like))
    leaves, structure = jax.tree.flatten(like)
    ends = np.cumsum([packed_bytes(leaf) for leaf in leaves])[:-1]
    parts = jnp.split(jnp.asarray(rows), ends.tolist(), axis=1)
    return jax.tree.unflatten(structure, [_restored(part, leaf) for part, leaf in zip(parts, leaves, strict=True)])


def form_bytes(shape: Sequence[int], dtype: Any) -> int:
    """Bytes of a packed array."""
    size = math.prod(shape)
    return math.ceil(size / 8) if dtype == np.bool_ else size * np.dtype(dtype).itemsize


def to_bytes(array: Any, xp: Any) -> Any:
    """`[N, ...]` of any dtype as `[N, bytes]` uint8; `xp` is `numpy` or `jax.numpy`."""
    flat = array.reshape(len(array), math.prod(array.shape[1:]))
    if array.dtype == np.bool_:
        return xp.packbits(flat, axis=1)
    return (np.ascontiguousarray(flat) if xp is np else flat).view(np.uint8)


def from_bytes(rows: Any, shape: Sequence[int], dtype: Any, xp: Any) -> Any:
    """The inverse of `to_bytes`: `[N, bytes]` uint8 to `[N, *shape]`."""
    bits = dtype == np.bool_
    flat = xp.unpackbits(rows, axis=1, count=math.prod(shape)) != 0 if bits else rows.view(dtype)
    return flat.reshape(len(rows), *shape)


def is_key(leaf: Any) -> bool:
    """Whether a leaf, or its shape, is of PRNG keys."""
    return bool(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key))


def plain(leaf: Array) -> jax.Array:
    """The leaf as an array; for PRNG keys the key data."""
    return jax.random.key_data(leaf) if is_key(leaf) else jnp.asarray(leaf)


def _form(like: Any) -> jax.ShapeDtypeStruct:
    """The shape and dtype of `plain` of a leaf, or of its shape."""
    form: jax.ShapeDtypeStruct = jax.eval_shape(plain, like)
    return form


def _restored(rows: jax.Array, like: Any) -> jax.Array:
    """The leaf of B states from `[B, bytes]`."""
    form = _form(like)
    data: jax.Array = from_bytes(rows, form.shape, form.dtype, jnp)
    return jax.random.wrap_key_data(data, impl=_key_impl(like)) if is_key(like) else data


def _key_impl(like: Any) -> Any:
    """The PRNG implementation of a key or its shape."""
    impls: list[Any] = []
    # `jax.random.key_impl` takes keys, not shapes, so it is called in a trace.
    jax.eval_shape(lambda key: impls.append(jax.random.key_impl(key)), like)
    return impls[0]


Stored = Sample | Window | StoredState
"""The kinds of samples that replay holds."""

_SCALE = 2.0**14
"""Factor of packed probabilities, which keeps them away from float16's subnormal numbers: devices may flush these."""
_LEAST = 2.0**-28
"""Smaller probabilities are packed as zero."""
_SUM_TOLERANCE = 4e-3
"""Largest difference from one of the sum of a packed policy: what replay accepts before packing, and the rounding."""
_BOUND_TOLERANCE = 1e-5
"""Largest distance by which rounding may move a value target out of [-1, 1]."""
_MOST = 2**31 - 1
_DIGIT = 64
"""The base of the two digits of an action."""
_LAST = 2**16 - 1
"""The largest number of an action that `_largest` can tell."""
_ACTIONS = "actions"
"""The part of a row that tells the actions of a policy of K targets."""
# `Any`, because the fields of samples are annotated as arrays.
_struct: Any = jax.ShapeDtypeStruct


class _Part(NamedTuple):
    """A part of a row."""

    name: str
    """The field of the samples, or `_ACTIONS`."""
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    """The dtype in the row."""
    restored: np.dtype[Any]
    """The dtype in the samples."""


class SamplePacking:
    """How samples of one kind become rows of bytes, and rows samples."""

    def __init__(
        self, like: Any, spec: EnvSpec, targets: int | None = None, holds_states: bool = False, env: Env | None = None
    ) -> None:
        """Takes the shapes of a `Stored` sample (`podzero.config.samples`), and its environment's specification.

        With `targets`, rows hold only so many actions of a policy, those with the largest probability. With
        `holds_states` they hold packed states in place of observations and legal actions; `unpack` then needs `env`.
        """
        self.like = like
        """The shapes of the samples that `pack` takes."""
        self.holds_states = holds_states
        self._env, self._actions = env, spec.num_actions
        self._policy = "policy_target" if isinstance(like, Sample) else "policy"
        leaves = {name: leaf for name, leaf in like._asdict().items() if leaf is not None}
        if holds_states:
            self._states: Any = None if env is None else jax.eval_shape(env.init, jax.random.key(0))
            state = _struct((spec.state_bytes,), np.dtype(np.uint8))
            self.like = like._replace(state=state)
            leaves = {"state": state} | {n: leaf for n, leaf in leaves.items() if n not in ("observation", "legal")}
        most = leaves[self._policy].shape[-1] if self._policy in leaves else 0
        if targets is not None and most and targets > spec.num_actions:
            what = f"has {spec.num_actions} actions" if spec.num_actions else "has continuous actions"
            raise ConfigError(
                f"search.targets {targets}: {spec.name} {what}; set "
                f"{f'at most {spec.num_actions}, or ' if spec.num_actions else ''}none (null) for all"
            )
        self.targets = targets if targets is not None and targets < most else None
        """The number of actions of a policy in a row; None for all."""
        self.bounds = _bounds(like, spec)
        """The lowest and highest valid number of fields."""
        self._parts = [part for name, leaf in leaves.items() for part in self._parts_of(name, leaf)]
        ends = [*accumulate((form_bytes(part.shape, part.dtype) for part in self._parts), initial=0)]
        self._places = [slice(*place) for place in pairwise(ends)]
        self.row_bytes = ends[-1]
        """Bytes of a row."""
        self._unchecked = {part.name for part in self._parts if part.dtype.kind in "bu"} - {"legal"}
        """The parts of which all bytes are valid."""
        self.layout = " ".join(
            f"{part.name}:{'bits' if part.dtype == np.bool_ else part.dtype}[{','.join(map(str, part.shape))}]"
            for part in self._parts
        )
        """What a row holds, as text; rows of equal layouts are interchangeable."""

    def _parts_of(self, name: str, leaf: Any) -> list[_Part]:
        dtype, shape = np.dtype(leaf.dtype), tuple(leaf.shape)
        if name == self._policy:
            kept = shape if self.targets is None else (*shape[:-1], self.targets)
            values = _Part(name, kept, np.dtype(np.float16), dtype)
            if self.targets is None:
                return [values]
            return [values, _Part(_ACTIONS, kept, _integer(self._actions - 1), np.dtype(np.int32))]
        counts = dtype == np.int32 and name in self.bounds
        return [_Part(name, shape, _integer(self.bounds[name][1]) if counts else dtype, dtype)]

    def pack(self, samples: Any, xp: Any = np, actions: Any = None) -> Any:
        """Packs samples `[..., *shape]` into rows `[..., row_bytes]` uint8 by `xp`, `numpy` or `jax.numpy`.

        Fields that rows do not hold may be None. Policies in float16 are those of `kept`, and `actions` its actions.
        """
        fields = samples._asdict() | {_ACTIONS: actions}
        policy = fields.get(self._policy)
        if policy is not None and policy.dtype != np.float16:
            fields[self._policy], fields[_ACTIONS] = self.kept(policy, xp)
        leading = samples.version.shape
        arrays = [xp.asarray(fields[part.name]).astype(part.dtype) for part in self._parts]
        assert all(array.shape == (*leading, *part.shape) for array, part in zip(arrays, self._parts, strict=True))
        flat = [array.reshape(math.prod(leading), *array.shape[len(leading) :]) for array in arrays]
        return xp.concatenate([to_bytes(array, xp) for array in flat], axis=1).reshape(*leading, self.row_bytes)

    def kept(self, policy: Any, xp: Any = np) -> tuple[Any, Any]:
        """What rows hold of policies `[..., A]`: the probabilities times `_SCALE`, float16, and their actions, both
        `[..., K]`; or of all actions, and None.
        """
        policy = xp.asarray(policy).astype(np.float32)
        values = (xp.where(policy < _LEAST, np.float32(0), policy) * np.float32(_SCALE)).astype(np.float16)
        if self.targets is None:
            return values, None
        values, actions = _largest(values, self.targets, xp)
        return values, actions.astype(_integer(self._actions - 1))

    def unpack(self, rows: Any, xp: Any = np) -> Any:
        """Unpacks rows `[..., row_bytes]` uint8 by `xp` into samples `[..., *shape]`: those that were packed, with
        policies rounded to float16 and again normalized.
        """
        leading = rows.shape[:-1]
        fields = self._read(rows.reshape(math.prod(leading), self.row_bytes), xp)
        policy, actions = fields.get(self._policy), fields.pop(_ACTIONS, None)
        if policy is not None:
            total = xp.sum(policy, axis=-1, keepdims=True)
            # Policies of positions after the end of an episode are zero.
            policy = policy / xp.where(total > 0, total, np.float32(1))
            fields[self._policy] = policy if actions is None else _dense(policy, actions, self._actions, xp)
        if self.holds_states:
            assert self._env is not None, "rows of states are unpacked by their game"
            view = jax.vmap(self._env.view)(unpack_states(fields.pop("state"), self._states))
            fields |= {"observation": xp.asarray(view.observation), "legal": xp.asarray(view.legal)}
        return type(self.like)(**{name: field.reshape(*leading, *field.shape[1:]) for name, field in fields.items()})

    def versions(self, rows: NDArray[np.uint8]) -> NDArray[np.int32]:
        """The versions of the parameters that made the samples in rows `[..., row_bytes]`, `[...]`."""
        others = {part.name for part in self._parts} - {"version"}
        found: NDArray[np.int32] = self._read(rows.reshape(-1, self.row_bytes), np, others)["version"]
        return found.reshape(rows.shape[:-1])

    def decodes(self, rows: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Which of the rows `[N, row_bytes]` hold a valid sample, `[N]`: numbers finite and within their bounds,
        policies with a sum of one over legal actions.
        """
        fields, valid = self._read(rows, np, without=self._unchecked), np.ones(len(rows), np.bool_)
        for name, values in fields.items():
            valid &= self.within(name, values).all(axis=tuple(range(1, values.ndim)))
        policy = fields.get(self._policy)
        if policy is None:
            return valid
        actions, legal = fields.get(_ACTIONS), fields.get("legal")
        with np.errstate(invalid="ignore"):  # of infinities
            total = policy.sum(axis=-1) / _SCALE
        # The K largest of A probabilities have at least K / A of the sum.
        least = 1.0 if actions is None else policy.shape[-1] / self._actions
        right = (total > least - _SUM_TOLERANCE) & (total < 1 + _SUM_TOLERANCE)
        if "length" in fields:  # a window: no action follows positions from there on
            right |= np.arange(policy.shape[1]) >= fields["length"][:, None]
        valid &= right.all(axis=tuple(range(1, right.ndim)))
        if legal is not None:
            if actions is not None:
                legal = np.take_along_axis(legal, np.clip(actions, 0, self._actions - 1), axis=1)
            valid &= legal.any(axis=1) & ~((policy > _SUM_TOLERANCE * _SCALE) & ~legal).any(axis=1)
        return valid

    def within(self, name: str, values: Any) -> NDArray[np.bool_]:
        """Which numbers of a field are finite and within its bounds."""
        low, high = self.bounds.get(name, (-math.inf, math.inf))
        slack = _BOUND_TOLERANCE if values.dtype.kind == "f" else 0
        within: NDArray[np.bool_] = np.isfinite(values) & (values >= low - slack) & (values <= high + slack)
        return within

    def _read(self, rows: Any, xp: Any, without: Collection[str] = ()) -> dict[str, Any]:
        """The parts of rows in the dtypes of the samples, policies times `_SCALE`."""
        return {
            part.name: from_bytes(rows[:, place], part.shape, part.dtype, xp).astype(part.restored)
            for part, place in zip(self._parts, self._places, strict=True)
            if part.name not in without
        }


def sample_packing(experiment: Experiment, spec: EnvSpec, env: Env | None = None) -> SamplePacking:
    """How replay holds the samples of an experiment; to unpack rows of states, it needs `env`."""
    states = holds_states(experiment, spec)
    return SamplePacking(sample_like(experiment, spec), spec, experiment.search.targets, states, env)


def state_packing(experiment: Experiment, spec: EnvSpec) -> SamplePacking:
    """How replay holds the samples that are stored for reanalysis."""
    return SamplePacking(stored_state_like(experiment, spec), spec)


def holds_states(experiment: Experiment, spec: EnvSpec) -> bool:
    """Whether rows hold the packed states of a game in JAX: where they are at most half as large as observations and
    legal actions, since the train step computes these; not in windows, nor beside recorded games without states.
    """
    if not isinstance(experiment.env, JaxGameConfig) or experiment.learns_model or experiment.data.records is not None:
        return False
    observed = form_bytes(spec.observation_shape, np.dtype(spec.observation_dtype)) + math.ceil(spec.num_actions / 8)
    return 0 < 2 * spec.state_bytes <= observed


def _largest(values: Any, count: int, xp: Any) -> tuple[Any, Any]:
    """The `count` largest of non-negative numbers `[..., A]` in float16 and their actions, both `[..., count]`, in
    falling order; of equal ones those of the lowest actions.
    """
    actions = values.shape[-1]
    assert actions <= _LAST + 1
    # One integer holds a number, whose bits have its order, and its action: accelerators sort pairs more slowly.
    keys = (values.view(np.int16).astype(np.int32) << 16) | (_LAST - xp.arange(actions, dtype=np.int32))
    keys = xp.sort(keys, axis=-1, stable=False)[..., ::-1][..., :count]
    return (keys >> 16).astype(np.int16).view(np.float16), _LAST - (keys & _LAST)


def _bounds(like: Stored, spec: EnvSpec) -> dict[str, tuple[float, float]]:
    """The lowest and highest valid number in fields."""
    last = spec.num_actions - 1
    bounds: dict[str, tuple[float, float]] = {"version": (-1, _MOST)}
    if isinstance(like, Sample):
        bounds |= {"policy_target": (0, math.inf), _ACTIONS: (0, last), "reply": (-1, last)}
        bounds |= {"value_target": (-1, 1), "outcome": (-1, 2), "moves_left": (-1, spec.max_plies or _MOST)}
        bounds["ownership"] = (-1, 2)
    if isinstance(like, Window):
        bounds |= {"policy": (0, math.inf), _ACTIONS: (0, last), "length": (1, like.reward.shape[0])}
        if spec.action_bounds is None:
            bounds["action"] = (0, last)
    return bounds


def _integer(highest: float) -> np.dtype[Any]:
    """The smallest signed dtype that holds -1 and `highest`."""
    return next(np.dtype(kind) for kind in (np.int8, np.int16, np.int32) if highest <= np.iinfo(kind).max)


def _dense(values: Any, actions: Any, size: int, xp: Any) -> Any:
    """Values `[..., K]` of K actions each as `[..., size]`, zero elsewhere."""
    if xp is np:
        dense = np.zeros((*values.shape[:-1], size), values.dtype)
        np.put_along_axis(dense, actions, values, axis=-1)
        return dense
    # A product of matrices, since scattering is slow on TPUs: the two digits of an action are its row and column.
    rows = jax.nn.one_hot(actions // _DIGIT, math.ceil(size / _DIGIT)) * values[..., None]
    columns = jax.nn.one_hot(actions % _DIGIT, _DIGIT)
    table = jnp.einsum("...kr,...kc->...rc", rows, columns, precision="highest")
    return table.reshape(*values.shape[:-1], -1)[..., :size]
