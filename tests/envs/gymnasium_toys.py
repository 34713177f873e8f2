"""Small environments with known behaviour, registered when this module is imported (also in subprocesses)."""

import multiprocessing
import os
import sys
import time

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

FAULT = 2
"""The action of `Toy` that causes its fault."""
CLOSED = {"vectors": 0}
"""How many `OwnToys` were closed in this process."""
RESETS = {"allowed": 10**9}
"""How many more resets of `Toy` succeed in this process."""

BROKEN = {
    "nan": lambda observation: observation * np.nan,
    "far": lambda observation: observation + 5000,
    "near": lambda observation: observation + 500,
    "shape": lambda observation: observation[:2],
    "kind": lambda observation: observation.astype(complex),
}
"""Faults of `Toy` that make an observation invalid."""


def _break():
    raise ZeroDivisionError("the toy broke")


def _loop():
    while True:
        pass


FATAL = {
    "raise": _break,
    "exit": lambda: sys.exit("the toy left"),
    "hang": lambda: time.sleep(30),
    "loop": _loop,
    "die": lambda: os._exit(3),
}
"""Faults of `Toy` that keep a step from returning."""


REWARDS = {
    "nan reward": float("nan"),
    "no reward": None,
    "long reward": np.array([1.0]),
    "two rewards": [1.0, 2.0],
    "word": "1.0",
}
"""Rewards that are none."""


class Toy(gymnasium.Env):
    """Observes `[steps of this episode, last action or -1, episode]`; terminates after `length` steps."""

    def __init__(self, length=4, fault="raise"):
        self.observation_space = Box(-1, 100, (3,), np.float32)
        self.action_space = Discrete(3)
        self.length, self.fault, self.episode = length, fault, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        RESETS["allowed"] -= 1
        if RESETS["allowed"] < 0:
            raise OSError("no more resets")
        self.episode += 1
        self.time = 0
        return self.observe(-1), {"not": "carried"}

    def step(self, action):
        self.time += 1
        observation, reward = self.observe(action), float(action)
        if action == FAULT:
            observation, reward = self.cause_fault(observation, reward)
        info = {"not": "carried", "last": float(action), "square": np.int64(self.time**2)}
        return observation, reward, self.time == self.length, False, info

    def observe(self, action):
        return np.array([self.time, action, self.episode], np.float32)

    def cause_fault(self, observation, reward):
        if self.fault in BROKEN:
            observation = BROKEN[self.fault](observation)
        elif self.fault in FATAL:
            FATAL[self.fault]()
        elif self.fault != "none":
            reward = REWARDS[self.fault]
        return observation, reward


class Homebody(Toy):
    """Can be made only in the test's own process; in a subprocess its constructor raises, or hangs."""

    def __init__(self, in_subprocess="raise"):
        super().__init__()
        if multiprocessing.parent_process() is not None:
            FATAL[in_subprocess]()


class Joint(gymnasium.Env):
    """Observes the two parts of its last action, `[2]`."""

    def __init__(self):
        self.observation_space = Box(-10, 10, (2,), np.float64)
        self.action_space = MultiDiscrete([2, 3], start=[0, 5])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.uniform(size=2), {}

    def step(self, action):
        assert self.action_space.contains(action)
        return action.astype(float), 0.0, False, False, {}


class Parts(gymnasium.Env):
    """Observes a Dict of a number from 1 to 3 and two floats: those of its last action, `[2, 1]`."""

    def __init__(self, first=1):
        self.observation_space = Dict({"speed": Box(-4, 4, (2,), np.float64), "where": Discrete(3, start=1)})
        self.action_space = Box(np.array([[0], [-1]]), np.array([[4], [1]]), (2, 1), np.float32)
        self.where = first

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return {"speed": self.np_random.uniform(size=2), "where": self.where}, {}

    def step(self, action):
        assert self.action_space.contains(action)
        self.where = self.where % 3 + 1
        return {"speed": action.ravel().astype(float), "where": self.where}, 0.0, False, False, {}


class Words(Toy):
    def __init__(self):
        super().__init__()
        self.observation_space = Dict({"name": Text(5), "age": Discrete(9)})


class Reaching(Toy):
    def __init__(self, high=np.inf, count=0):
        super().__init__()
        self.action_space = MultiDiscrete([5] * count) if count else Box(-1, high, (2,), np.float32)


class Lacking(Toy):
    def __init__(self, extra="box2d"):
        raise gymnasium.error.DependencyNotInstalled(f'it is not installed, run `pip install "gymnasium[{extra}]"`')


DRAWN = {
    "pixels": lambda time: np.full((4, 6, 3), 10 * time, np.uint8),
    "colours": lambda time: np.full((4, 6, 3), time / 4),
    "gray": lambda time: np.zeros((4, 6), np.uint8),
    "nothing": lambda time: None,
    "lacking": lambda time: Lacking(),
    "broken": lambda time: _break(),
    "slow": lambda time: sleep_long(),
}
"""What `Drawn` renders after so many steps."""
RENDERS = {"render_modes": ["human", "rgb_array"], "render_fps": 7}


def sleep_long():
    time.sleep(30)


class Drawn(Toy):
    """A `Toy` that renders, as one of `DRAWN`."""

    metadata = RENDERS

    def __init__(self, render_mode=None, drawn="pixels", **kwargs):
        super().__init__(**kwargs)
        self.render_mode, self.drawn = render_mode, drawn

    def render(self):
        assert self.render_mode == "rgb_array"
        return DRAWN[self.drawn](self.time)


class Imported(Toy):
    """Observes whether a module is imported in its process."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def observe(self, action):
        return np.full(3, self.module in sys.modules, np.float32)


class OwnToys(gymnasium.vector.VectorEnv):
    """`Toy` as a registered vector environment; the episodes of environment i are i + 2 steps long."""

    def __init__(self, num_envs, mode="NextStep", fault="raise"):
        self.num_envs = num_envs
        self.metadata = {"autoreset_mode": AutoresetMode(mode)}
        self.single_observation_space, self.single_action_space = Box(-1, 100, (3,), np.float32), Discrete(3)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.toys = [Toy(i + 2, fault) for i in range(num_envs)]
        self.buffer = np.zeros((num_envs, 3), np.float32)
        self.over = np.zeros(num_envs, bool)

    def close_extras(self, **kwargs):
        CLOSED["vectors"] += 1

    def reset(self, *, seed=None, options=None):
        self.buffer[:] = [toy.reset()[0] for toy in self.toys]
        self.over[:] = False
        return self.buffer, {}

    def step(self, actions):
        reward = np.zeros(self.num_envs)
        for i, toy in enumerate(self.toys):
            if self.over[i]:
                self.buffer[i], self.over[i] = toy.reset()[0], False
            else:
                self.buffer[i], reward[i], self.over[i] = toy.step(actions[i])[:3]
        return self.buffer, reward, self.over, np.zeros(self.num_envs, bool), {}


RETURNED = {
    "four": lambda step: (*step[:2], step[2], {}),
    "three": lambda step: step[:3],
    "nothing": lambda step: None,
    "no info": lambda step: (*step[:4], None),
    "word": lambda step: (*step[:2], "False", *step[3:]),
    "no end": lambda step: (*step[:2], None, *step[3:]),
    "late mask": lambda step: (*step[:4], {"action_mask": np.ones(3, bool)}),
    "late list": lambda step: (*step[:4], {"legal_actions": [0, 1]}),
    "count": lambda step: (*step[:4], {"legal_actions": 2}),
}
"""What `Returning` makes of the five values of a step."""


class Returning(Toy):
    """A `Toy` whose steps, or whose resets, return one of `RETURNED`."""

    def __init__(self, returned, reset=None):
        super().__init__(fault="none")
        self.returned, self.first = RETURNED[returned], reset

    def reset(self, **kwargs):
        observation, info = super().reset(**kwargs)
        return {None: (observation, info), "alone": observation, "no info": (observation, None)}[self.first]

    def step(self, action):
        return self.returned(super().step(action))


MASKS = {
    "good": lambda toy: np.arange(3) != toy.time % 3,
    "numbers": lambda toy: (np.arange(3) != toy.time % 3).astype(np.float64),
    "logits": lambda toy: [0, -np.inf, -np.inf],
    "indices": lambda toy: [2, 2, 2],
    "short": lambda toy: [0, 2],
    "words": lambda toy: ["a", "b", "c"],
    "nan": lambda toy: [1, np.nan, 0],
    "tuple": lambda toy: (np.ones(2, np.int8), np.ones(3, np.int8)),
    "none at the end": lambda toy: np.full(3, toy.time < toy.length),
    "none": lambda toy: np.full(3, toy.time == 0),
    "long": lambda toy: np.ones(3 + toy.time, np.int8),
    "none at first": lambda toy: np.zeros(3, np.int8),
}
"""The action masks of `Masked` after so many steps."""


class Masked(Toy):
    """A `Toy` in which action t % 3 is illegal after t steps, or whose mask is another of `MASKS`."""

    def __init__(self, mask="good", **kwargs):
        super().__init__(**{"fault": "none"} | kwargs)
        self.mask = MASKS.get(mask)

    def reset(self, **kwargs):
        return super().reset(**kwargs)[0], self.masks()

    def step(self, action):
        return *super().step(action)[:-1], self.masks()

    def masks(self):
        # "missing" after the first reset
        return {} if self.mask is None and self.time else {"action_mask": (self.mask or MASKS["good"])(self)}


class MaskedElsewhere(Masked):
    """A `Masked` whose mask is at another place."""

    def __init__(self, place, joint=False, **kwargs):
        super().__init__(**kwargs)
        self.place, seen = place, Box(-1, 100, (3,), np.float32)
        if place == "method":
            self.action_masks = lambda: MASKS["good"](self)
        else:
            self.key = "action_mask" if place == "nested" else place
            part = Dict({self.key: MultiBinary(3), "seen": seen})
            self.observation_space = Dict({"parts": part}) if place == "nested" else part
        if joint:
            self.action_space = MultiDiscrete([1, 3])

    def masks(self):
        return {}

    def observe(self, action):
        seen = super().observe(action)
        if self.place == "method":
            return seen
        part = {self.key: MASKS["good"](self).astype(np.int8), "seen": seen}
        return {"parts": part} if self.place == "nested" else part


class OwnMasked(OwnToys):
    """`Masked` as a registered vector environment."""

    def __init__(self, num_envs, **kwargs):
        super().__init__(num_envs)
        self.toys = [Masked(length=i + 2, **kwargs) for i in range(num_envs)]

    def reset(self, **kwargs):
        return super().reset(**kwargs)[0], self.masks()

    def step(self, actions):
        return *super().step(actions)[:-1], self.masks()

    def masks(self):
        found = [toy.masks() for toy in self.toys]
        return {"action_mask": np.stack([one["action_mask"] for one in found])} if all(found) else {}


class Doubled(gymnasium.RewardWrapper):
    """A wrapper that is not gymnasium's."""

    def __init__(self, env, factor=2.0):
        super().__init__(env)
        self.factor = factor

    def reward(self, reward):
        return self.factor * reward


def _register():
    here = __name__
    gymnasium.register("toys/Toy-v0", f"{here}:Toy", vector_entry_point=f"{here}:OwnToys")
    gymnasium.register("toys/Masked-v0", f"{here}:Masked", vector_entry_point=f"{here}:OwnMasked")
    gymnasium.register("toys/Limited-v0", f"{here}:Toy", max_episode_steps=3)
    for name in ("Joint", "Parts", "Words", "Reaching", "Lacking", "Drawn", "Imported", "Homebody",
                 "Returning", "MaskedElsewhere"):  # fmt: skip
        gymnasium.register(f"toys/{name}-v0", f"{here}:{name}")


_register()
