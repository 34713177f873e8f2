"""YAML in which no mapping has a key twice: of two sections with one name, the first would be lost without a word."""

from __future__ import annotations

from typing import Any

import yaml


class _UniqueKeys(yaml.SafeLoader):
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
