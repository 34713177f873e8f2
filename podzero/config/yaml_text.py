"""YAML as experiments are written: no mapping has a key twice, and each line may end with a comment."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import yaml


class _UniqueKeys(yaml.SafeLoader):
    """Refuses two sections with one name, of which the first would be lost without a word."""

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
    """The plain values of a YAML document.

    Raises:
      yaml.YAMLError: it is not valid YAML, or a mapping has a key twice.
    """
    return yaml.load(text, _UniqueKeys)


def to_commented_yaml(tree: Mapping[str, Any], comments: Mapping[str, str], head: str = "") -> str:
    """The settings as YAML, each on its own line, which ends with its comment.

    Args:
      tree: nested sections.
      comments: the comment of each setting, by its dotted name; the comments of a section stand above it.
      head: a comment above all.
    """
    lines = [f"# {line}".rstrip() for line in head.splitlines()]
    return "\n".join([*lines, *_lines(tree, comments, "", "")]) + "\n"


def _lines(tree: Mapping[str, Any], comments: Mapping[str, str], section: str, indent: str) -> Iterator[str]:
    for key, value in tree.items():
        name = f"{section}{key}"
        comment = f"# {comments[name]}" if name in comments else ""
        if isinstance(value, dict) and value:
            if comment:
                yield f"{indent}{comment}"
            yield f"{indent}{key}:"
            yield from _lines(value, comments, f"{name}.", f"{indent}  ")
            continue
        first, *more = _flow(value)
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
