"""Reads the YAML files of an experiment and merges their settings; writes settings as YAML with comments."""

from __future__ import annotations

import itertools
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from podzero.config.environments import BUILTIN_GAMES
from podzero.config.networks import ResNetConfig
from podzero.config.section import path_field_of
from podzero.config.training import OptimizerConfig
from podzero.core.errors import ConfigError, described, nearest
from podzero.core.importing import file_digest, place_of

FOR_SLICES = "slices/"
"""Prefix of the names of the experiments for TPU slices."""
EXTENDS = "extends"
"""The key of a file that names the experiment whose settings it takes over."""
COMMAND_LINE = "command line"
"""The origin of an override."""
_KINDS: Mapping[str, str | None] = {
    "env": None,
    "network": ResNetConfig.model_fields["name"].default,
    "learner.optimizer": OptimizerConfig.model_fields["name"].default,
    "learner.objective": None,
    "search.algorithm": None,
}
"""The sections whose `name` decides which fields they have and may be an import path, and the name by default."""
_FILES = ("env.name", "env.id", "env.module", "env.wrappers.*.name", *(f"{own}.name" for own in _KINDS if own != "env"))
"""The settings that may name a Python file."""
_RUNS = ("init_from", "teacher", "actors.opponents.*.who", "data.records")
"""The settings that may name a run or another folder."""


class Layers(NamedTuple):
    """The merged settings of a file and of those that it extends, and where each comes from."""

    files: tuple[str, ...]
    """The file, the one that it extends, and so on: names of built-in experiments, or paths."""
    tree: dict[str, Any]
    """The merged sections."""
    origins: dict[str, str]
    """The file of each setting that is given, or `COMMAND_LINE`, by the setting's dotted name."""

    @property
    def lineage(self) -> str:
        """What extends what, as a sentence without a full stop."""
        first, *parents = self.files
        return f"{first} extends {', which extends '.join(parents)}" if parents else f"{first} extends nothing"

    @property
    def inherited(self) -> dict[str, str]:
        """The origins of the settings that the first file does not give itself."""
        own = (self.files[0], COMMAND_LINE)
        return {setting: origin for setting, origin in self.origins.items() if origin not in own}

    def explain(self, settings: Mapping[str, Any]) -> str:
        """The resolved settings as YAML; a comment names the origin of each one that is not a default."""
        return "\n".join([f"# {self.lineage}", *_commented(settings, self.origins)]) + "\n"


@cache
def builtin_configs() -> dict[str, Path]:
    """Names and files of the built-in experiments; those for TPU slices come last."""
    folder = Path(__file__).parents[1] / "configs"
    general = {path.stem: path for path in sorted(folder.glob("*.yaml"))}
    return general | {FOR_SLICES + path.stem: path for path in sorted((folder / FOR_SLICES).glob("*.yaml"))}


def read_layers(config: str, overrides: Iterable[str] = ()) -> Layers:
    """Reads a file and those that it extends, and merges them; see `merge`.

    The name of an experiment is not inherited: by default it is that of its file.

    Args:
      config: the name of a built-in experiment, or the path of a YAML file.
      overrides: `section.field=value` items; values are YAML.
    """
    path = _find(config, Path())
    chain = dict(_chain(config))
    tree: dict[str, Any] = {}
    for child in reversed(chain.values()):
        tree.pop("name", None)
        tree = merge(tree, child)
    given = {origin: flatten(of_file) for origin, of_file in chain.items()}
    origins = {name: next(origin for origin in given if name in given[origin]) for name in flatten(tree)}
    tree.setdefault("name", path.stem)
    for override in overrides:
        setting, value = _apply(tree, override)
        # An override of a section replaces everything in it. With the dots, `env` does not match `envs.a`.
        others = {name: origin for name, origin in origins.items() if not f"{name}.".startswith(f"{setting}.")}
        origins = others | dict.fromkeys(flatten({setting: value}), COMMAND_LINE)
    # `_chain` has done this for each file; overrides may name others.
    _make_paths_absolute(tree, path.parent)
    for section in _KINDS:
        for holder, key in _places(tree, section):
            own = holder[key]
            code = own.get(path_field_of(str(own.get("name")))) if isinstance(own, dict) else None
            # The digest of the file, unless one is given: that of the file of the run.
            if isinstance(code, str) and (digest := file_digest(place_of(code))) is not None:
                own.setdefault("sha256", digest)
    return Layers(tuple(chain), tree, origins)


def merge(parent: dict[str, Any], child: dict[str, Any], section: str = "") -> dict[str, Any]:
    """The sections of `parent` with those of `child` over them.

    Sections are merged field by field, at any depth. A list replaces a list. A section whose `name` differs, such as
    that of another network, replaces the whole section, because the two kinds have different fields.

    `section` is the dotted name of the section that both are; empty for the whole experiment.
    """
    if section in _KINDS and "name" in child and child["name"] != parent.get("name", _KINDS[section]):
        return child
    merged = dict(parent)
    for key, value in child.items():
        match parent.get(key), value:
            case dict() as old, dict():
                merged[key] = merge(old, value, f"{section}.{key}".removeprefix("."))
            case _:
                merged[key] = value
    return merged


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Turns nested sections into one level with dotted names."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def _chain(config: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """The origins and contents of a file and of those that it extends, nearest first."""
    builtin = {file: name for name, file in builtin_configs().items()}
    seen: dict[Path, str] = {}
    child, folder = "", Path()
    while True:
        try:
            path = _find(config, folder)
            tree = read_tree(path)
        except ConfigError as error:
            raise ConfigError(f"{child}{error}") from None
        origin, file = builtin.get(path) or os.path.normpath(path), path.resolve()
        if file in seen:
            circle = " extends ".join([*list(seen.values())[list(seen).index(file) :], origin])
            raise ConfigError(f"{circle}: files extend each other in a circle; remove one of these lines `extends`")
        seen[file] = origin
        # `extends:` without a value is None in YAML, and is refused.
        extends_nothing, config = EXTENDS not in tree, tree.pop(EXTENDS, None)
        child, folder = f"{origin}: {EXTENDS}: ", path.parent
        _make_paths_absolute(tree, folder)
        yield origin, tree
        if extends_nothing:
            return
        if not isinstance(config, str) or not config:
            raise ConfigError(
                f"{origin}: {EXTENDS} = {config!r}: expected the name of an experiment (`podzero configs` lists them), "
                f"or the path of a YAML file, for example `{EXTENDS}: connect_four`"
            )


def _find(config: str, folder: Path) -> Path:
    """The file of a built-in experiment, or a path, which is relative to `folder`."""
    builtin = builtin_configs()
    if config in builtin:
        return builtin[config]
    path = folder / os.path.expanduser(config)  # of pathlib's, some raise other errors for some names
    if os.path.isfile(path):
        return path
    if os.path.isdir(path):
        held = path / "experiment.yaml"
        example = f", for example that of the run there: {held}" if held.is_file() else ""
        raise ConfigError(f"{config} is a directory; expected the name of an experiment, or a YAML file{example}")
    if path.suffix in {".yaml", ".yml"} or "/" in config:
        raise ConfigError(f"no such file: {path}{nearest(config, builtin)}; `podzero configs` lists those built in")
    if config in BUILTIN_GAMES:
        raise ConfigError(f"{config} is a game; write an experiment: podzero new --game {config} --to {config}.yaml")
    general = ", ".join(name for name in builtin if not name.startswith(FOR_SLICES))
    raise ConfigError(
        f"no experiment '{config}'{nearest(config, builtin)}; built in: {general}, and those for TPU slices that "
        "`podzero configs` lists; or give the path of a YAML file"
    )


def read_tree(path: Path) -> dict[str, Any]:
    """The content of a YAML file, which must be a mapping; errors name the file."""
    try:
        with path.open(encoding="utf-8") as file:
            tree = read_yaml(file.read(_LONGEST + 1))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ConfigError(f"{path} is not valid YAML: {where}{error.problem}") from None
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} is not valid YAML: {error}") from None
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    if tree is None:
        raise ConfigError(f"{path} is empty; an experiment has at least section env, for example `env: {{name: hex}}`")
    if not isinstance(tree, dict):
        kind = "a list" if isinstance(tree, list) else "a single value"
        raise ConfigError(f"{path} holds {kind}; expected sections, for example `env: {{name: hex}}`")
    return tree


def _apply(tree: dict[str, Any], override: str) -> tuple[str, Any]:
    """Sets a value of `tree` as `section.field=value` says; returns its dotted name and the value."""
    setting, equals, text = override.partition("=")
    if not equals or not setting:
        raise ConfigError(f"override '{override}': expected section.field=value, for example learner.batch_size=256")
    try:
        value = read_yaml(text)
    except yaml.YAMLError as error:
        why = f": {error.problem}" if isinstance(error, yaml.MarkedYAMLError) else ""
        raise ConfigError(f"override '{override}': the value '{text}' is not valid YAML{why}") from None
    *sections, field = setting.split(".")
    for section in sections:
        inner = tree.setdefault(section, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"override '{override}': '{section}' is a value, not a section")
        tree = inner
    tree[field] = value
    return setting, value


def _make_paths_absolute(tree: dict[str, Any], folder: Path) -> None:
    """Makes paths of `_FILES` and `_RUNS`, which are relative to `folder` or else the current one, absolute."""
    for settings, absolute in ((_FILES, _absolute_file), (_RUNS, _absolute_run)):
        for setting in settings:
            for holder, key in _places(tree, setting):
                if isinstance(holder[key], str):
                    holder[key] = absolute(holder[key], folder)


def _places(tree: Any, setting: str) -> Iterator[tuple[dict[str, Any], str]]:
    """The mappings that hold a setting, and its key there; `*` stands for each item of a list."""
    key, _, rest = setting.partition(".")
    if key == "*":
        for item in tree if isinstance(tree, list) else ():
            yield from _places(item, rest)
    elif isinstance(tree, dict) and key in tree:
        if rest:
            yield from _places(tree[key], rest)
        else:
            yield tree, key


def _absolute_run(who: str, folder: Path) -> str:
    """`who` with an absolute path, if it is the `DIR` or `DIR@STEP` of an existing folder."""
    for place in (folder, Path.cwd()):
        # The name of a directory may itself contain an @.
        for name in (who, who.rpartition("@")[0]):
            if name and os.path.isdir(place / os.path.expanduser(name)):
                return str((place / os.path.expanduser(who)).absolute())
    return who


def _absolute_file(name: str, folder: Path) -> str:
    """`name` with an absolute path, if it is the `file.py` or `file.py:Class` of an existing file."""
    file = place_of(name)
    found = next((place / file for place in (folder, Path.cwd()) if os.path.isfile(place / file)), None)
    return f"{found.absolute()}{name.removeprefix(file)}" if found is not None and file.endswith(".py") else name


_LONGEST = 2**15
"""The most characters of a file; an experiment with all settings has 5,000."""
_MOST_VALUES, _DEEPEST = 10_000, 50
"""The most values of a file, each alias counted with all that it stands for, and how deep they may be nested."""
_UNUSABLE = re.compile("[\0\ud800-\udfff]")
"""Characters that no path and no file in UTF-8 can hold."""


class _PlainValues(yaml.SafeLoader):
    """Refuses two sections with one name, of which the first would be lost without a word, and what is too large."""

    def get_single_node(self) -> yaml.Node | None:
        root: yaml.Node | None = super().get_single_node()
        below, seen = [(root, 0)], 0
        while below:
            (node, depth), seen, problem = below.pop(), seen + 1, ""
            if seen > _MOST_VALUES or depth > _DEEPEST:
                problem = f"more than {_MOST_VALUES:,} values, or {_DEEPEST} sections and lists within each other"
            elif isinstance(node, yaml.ScalarNode) and _UNUSABLE.search(node.value):
                problem = f"{node.value!r:.200} holds characters that cannot be used"
            if problem and node is not None:
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
            if isinstance(node, yaml.CollectionNode):
                parts = itertools.chain(*node.value) if isinstance(node, yaml.MappingNode) else node.value
                below += [(part, depth + 1) for part in parts]
        return root

    # Before the keys that `<<` brings are merged: those may be replaced.
    def compose_mapping_node(self, anchor: dict[Any, yaml.Node]) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if (named := (key.tag, key.value)) in seen:
                raise yaml.MarkedYAMLError(problem=f"'{key.value}' is given twice", problem_mark=key.start_mark)
            seen.add(named)
        return node


def read_yaml(text: str) -> Any:
    """The plain values of a YAML document, or a `yaml.YAMLError`, also if a mapping has a key twice."""
    try:
        return yaml.load(text, _PlainValues)
    except yaml.YAMLError:
        raise
    except Exception as error:  # such as of a date 2026-99-99, an integer of 5,000 digits, or 1,000 brackets
        raise yaml.YAMLError(described(error)) from None


def _commented(tree: Mapping[str, Any], comments: Mapping[str, str], section: str = "") -> Iterator[str]:
    """The lines of settings as YAML; each ends with its comment."""
    indent = "  " * section.count(".")
    for key, value in tree.items():
        name = f"{section}{key}"
        if isinstance(value, dict) and value:
            yield f"{indent}{key}:"
            yield from _commented(value, comments, f"{name}.")
            continue
        first, *more = _flow(value)
        comment = f"# {comments[name]}" if name in comments else ""
        # A comment inside a text of several lines would be a part of it.
        if comment and more:
            yield f"{indent}{comment}"
        elif comment:
            first += f"  {comment}"
        yield f"{indent}{_flow(key)[0]}: {first}"
        yield from (f"{indent}{line}" for line in more)


def _flow(value: Any) -> list[str]:
    """A value in YAML's flow style: on one line, unless it is a text of several."""
    # Never folded, since a comment follows on the same line.
    text = yaml.safe_dump(value, default_flow_style=True, width=math.inf, allow_unicode=True)
    # YAML marks the end of a document that is a bare scalar.
    return text.removesuffix("...\n").splitlines()
