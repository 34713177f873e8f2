"""Reads an experiment from a YAML file and overrides, and explains its faults."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, get_args

import pydantic
from pydantic import BaseModel

from podzero.config.checks import check
from podzero.config.environments import BUILD_TIMEOUT_S
from podzero.config.experiment import Experiment
from podzero.config.layers import EXTENDS, flatten, read_layers
from podzero.config.section import ByName
from podzero.core.errors import ConfigError, nearest

GONE: dict[str, tuple[Any, str]] = {
    "actors.final_temperature": (0.0, "removed: after temperature_plies the temperature is 0"),
    "actors.full_search_share": (1.0, "removed: every move has a full search and is learned from"),
    "actors.max_false_resignations": (0.05, "removed, with resignation"),
    "actors.outcome_weight": (0.0, "removed: use td_lambda"),
    "actors.played_on_fraction": (0.1, "removed, with resignation"),
    "actors.resignation": (False, "removed: games are played to their end"),
    "actors.surprise_weight": (0.0, "removed: each position is written once"),
    "data.smoothing": (0.0, "removed: the policy target is the move that was played or searched"),
    "learner.auxiliary": ({"outcome": 0.15, "moves_left": 0.15, "reply": 0.15}, "removed: each has weight 0.15"),
    "learner.optimizer.momentum": (
        0.9, "removed: it is 0.9; for another use learner.optimizer={name: optax:sgd, momentum: 0.95}, with the same "
        "learning rate and schedule, but without weight decay",
    ),
    "learner.prefetch": (4, "removed: the learner reads one dispatch ahead"),
    "replay.importance_exponent": (1.0, "removed: importance weights correct the bias fully"),
    "search.fast_simulations": (8, "removed, with actors.full_search_share"),
    "search.first_play_reduction": (0.0, "removed"),
    "search.first_simulations": (None, "removed: every move has search.simulations"),
    "search.growth_steps": (10_000, "removed, with search.first_simulations"),
    "search.inner_selection": ("gumbel", "removed: use search.algorithm"),
    "search.maxvisit_init": (50.0, "removed: it is 50, use search.value_scale"),
    "search.pb_c_base": (19652.0, "removed: it is 19652, use search.pb_c_init"),
    "server.batches": (2, "renamed: use server.groups"),
}  # fmt: skip
"""Settings of earlier commits that were removed or renamed: the default that each had, and what to write instead.

Old working directories hold all of them. A setting at its default changes nothing, so it is dropped; any other value
is refused."""
FIXED: dict[str, tuple[Any, ...]] = {
    "checkpoint.keep": (2,), "checkpoint.keep_snapshots": (20,), "cluster.host_timeout_s": (60.0,),
    "env.build_timeout_s": (120.0, BUILD_TIMEOUT_S), "env.kept_positions": (32768,), "env.max_failures": (100,),
    "int8.cache_mib": (16.0, "actors.cache_mib"), "int8.max_policy_kl": (0.02,), "int8.max_value_error": (0.05,),
    "int8.positions": (512,),
    "learner.calibrate": (
        False, "false; compare learner/device_s_per_step with that of one chip with its share of the batch",
    ),
    "learner.mesh.data": (-1, "the number of devices over learner.mesh.model"),
    "metrics.tensorboard": (True,),
    "reanalyse.cpus": (1.0, "actors.cpus"),
    "reanalyse.games": (128, "actors.games, rounded up to replay.samples_per_item"),
    "replay.memory_gib": (None, "not reserved"), "replay.timeout_s": (None, "unlimited"),
    "replay.warn_after_s": (30.0,),
    "restarts.first_pause_s": (5.0,), "restarts.learner_failures": (5,), "restarts.longest_pause_s": (300.0,),
    "restarts.max_failures": (10,), "restarts.max_first_failures": (3,), "restarts.node_failures": (3,),
    "restarts.node_pause_minutes": (30.0,), "restarts.window_minutes": (30.0,),
    "server.cache_mib": (16.0, "actors.cache_mib"), "server.deadline_ms": (1.0,),
    "server.give_up_s": (None, "unlimited"), "server.hang_s": (60.0, "three times server.timeout_s"),
    "server.queue_mib": (1024.0,),
}  # fmt: skip
"""Settings of earlier commits that are constants now or follow from others: the default that each had, and what it is
now, if not that. They never changed what a run learns, so that working directories may hold any other value; elsewhere
it is refused."""


def load(config: str, overrides: Iterable[str] = ()) -> Experiment:
    """The experiment of a name or a YAML file, with those that it extends, and overrides (`read_layers`)."""
    layers = read_layers(config, overrides)
    return parse(layers.tree, config, layers.inherited)


def parse(
    tree: dict[str, Any],
    origin: str,
    inherited: Mapping[str, str] = MappingProxyType({}),
    given: Collection[str] | None = None,
) -> Experiment:
    """Checks a tree of plain values against the schema.

    Args:
      tree: the content of a YAML file.
      origin: the name of the experiment or file. A `ConfigError` begins with it, and has one line for each fault.
      inherited: the files of settings that another file gives, by dotted name, for these lines.
      given: for the tree of a working directory, which may hold other values of `FIXED`: the settings that the command
        line gives. None for any other tree.
    """
    tree, lines = _without_gone(tree, given)
    lines += _too_large(tree)
    try:
        experiment = Experiment.model_validate(tree)
        check(experiment)
        if not lines:
            return experiment
    except pydantic.ValidationError as error:
        lines += explain(error, inherited)
    except ValueError as broken_rule:
        lines.append(str(broken_rule))
    raise ConfigError("\n  ".join([f"{origin}: this experiment cannot be run:", *lines])) from None


def _without_gone(tree: Any, given: Collection[str] | None) -> tuple[Any, list[str]]:
    """The tree without the settings of `GONE` and `FIXED`, and a fault for each of them that may not be dropped."""
    faults: list[str] = []
    fixed = {name: (known[0], f"removed: it is {known[-1]}") for name, known in FIXED.items()}
    for name, (default, advice) in (GONE | fixed).items():
        tree, value = _taken_out(tree, name.split("."))
        # A section may give some of its fields only, each at its default.
        partial = isinstance(value, dict) and isinstance(default, dict) and default | value == default
        harmless = value in (_ABSENT, default) or partial
        if not harmless and (name not in FIXED or given is None or name in given):
            faults.append(f"{name} = {value!r}: {advice}")
    return tree, faults


_LARGEST = 10**15
"""The largest number of a setting: what is computed from two of them is still a number."""


def _too_large(tree: Any) -> Iterator[str]:
    """A line for each number that is too large."""
    for setting, value in flatten(tree).items() if isinstance(tree, dict) else ():
        if isinstance(value, int | float) and _LARGEST < abs(value) < math.inf:
            yield f"{setting} = {value!r:.40}: must be at most {_LARGEST:g} in size"


_ABSENT = object()


def _taken_out(tree: Any, path: list[str]) -> tuple[Any, Any]:
    """The tree without a setting, and its value; a section of which nothing is left may be gone itself."""
    key, *inner = path
    # The schema explains what is wrong with anything else than a section. Fields of the user's own parts are arguments.
    if not isinstance(tree, dict) or key not in tree or (not inner and ":" in str(tree.get("name"))):
        return tree, _ABSENT
    rest, value = _taken_out(tree[key], inner) if inner else ({}, tree[key])
    if value is _ABSENT:
        return tree, value
    return {name: each for name, each in tree.items() if name != key} | ({key: rest} if rest else {}), value


_MUST_BE = {
    "model_type": "a section, for example `{field: value}`",
    "dict_type": "a mapping, for example `{name: value}`",
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "an integer"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    "string_type": "a string",
    "tuple_type": "a list, for example `[a, b]`",
}
"""The expected value by pydantic's type of error."""


def explain(error: pydantic.ValidationError, inherited: Mapping[str, str]) -> Iterator[str]:
    """One line for each fault: the field, its value, what was expected, and the most similar valid name."""
    for fault in error.errors(include_url=False):
        location, section = _located(fault["loc"])
        setting = ".".join(location)
        source = f" (inherited from {inherited[setting]})" if setting in inherited else ""
        yield _line(location, section, fault) + source


def _located(parts: Iterable[int | str]) -> tuple[list[str], type[BaseModel]]:
    """The path of a fault without the kinds of sections, which pydantic adds, and the section at its end."""
    path: list[str] = []
    section: type[BaseModel] = Experiment
    kinds: dict[str, type[BaseModel]] = {}
    several = False
    for part in map(str, parts):
        if several:  # of which pydantic took this one
            section, several = kinds.get(part, section), False
            continue
        path.append(part)
        if (field := section.model_fields.get(part)) is not None:
            kinds = {kind.__name__: kind for kind in _kinds(field.annotation)}
            several = any(isinstance(each, ByName | pydantic.Discriminator) for each in field.metadata)
            section = next(iter(kinds.values()), section)
    return path, section


def _line(location: list[str], section: type[BaseModel], fault: Any) -> str:
    value, where = fault.get("input"), ".".join(location)
    what = f"{where} = {value!r:.200}"
    match fault["type"]:
        case "extra_forbidden":
            if where in GONE_NAMES:
                return f"{where}: {GONE_NAMES[where]}"
            known = [*([] if location[1:] else [EXTENDS]), *section.model_fields]
            line = f"{where}: no such field{nearest(location[-1], known)}; known here: {', '.join(known)}"
        case "missing":
            line = f"{where}: required, but missing"
        case "literal_error":
            # pydantic writes "'a', 'b' or 'c'".
            line = _unknown(where, value, re.findall(r"'([^']*)'", fault["ctx"]["expected"]))
        case "unknown_kind":  # from `ByName`
            known = fault["ctx"]["known"].split(", ")
            if isinstance(value, dict) and "name" not in value:
                line = f"{where}.name: required, but missing; one of {', '.join(known)}"
            else:
                line = _unknown(f"{where}.name", value.get("name") if isinstance(value, dict) else value, known)
        case "value_error":
            line = f"{where}: {fault['ctx']['error']}".removeprefix(": ")
        case "invalid_key":
            line = f"{where}: the name of a field must be a string"
        case kind if kind in _MUST_BE:
            line = f"{what}: must be {_MUST_BE[kind]}"
        case _:
            line = f"{what}: {fault['msg'].replace('Input should be', 'must be')}"
    return line


GONE_NAMES = {
    "haiku_resnet": "removed: give the import path of a network in Haiku, such as configs/own_haiku_net.py",
    "pettingzoo": "removed: use tic_tac_toe, connect_four, chess or go_9x9, or open_spiel for Go of other sizes",
    "restarts": "removed: its settings are constants now (docs/operations.md); leave it out",
}
"""Names and sections of earlier commits that were removed, and what to write instead."""


def _unknown(where: str, value: Any, known: list[str]) -> str:
    if str(value) in GONE_NAMES:
        return f"{where} = {value!r}: {GONE_NAMES[str(value)]}"
    return f"{where} = {value!r:.200}: unknown{nearest(str(value), known)}; known: {', '.join(known)}"


def _kinds(annotation: Any) -> Iterator[type[BaseModel]]:
    """The sections in the annotation of a field: one, several of a union, or the items of a list."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for option in get_args(annotation):
        yield from _kinds(option)
