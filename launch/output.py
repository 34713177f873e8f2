"""What the commands print: one line of JSON, or aligned lines for people."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def print_json(result: Mapping[str, Any]) -> None:
    """Prints one JSON object on one line."""
    print(json.dumps(result, allow_nan=False), flush=True)


def print_result(result: Mapping[str, Any], as_json: bool) -> None:
    """Prints a flat result as JSON, or as one aligned line per value."""
    if as_json:
        print_json(result)
        return
    result = _flat(result)
    width = max(map(len, result), default=0)
    for name, value in result.items():
        print(f"{name:<{width}}  {readable(value)}")


def _flat(result: Mapping[str, Any]) -> dict[str, Any]:
    """Results in results become lines of their own, as `network keeps_value`."""
    flat: dict[str, Any] = {}
    for name, value in result.items():
        if isinstance(value, dict) and any(isinstance(inner, dict | list) for inner in value.values()):
            flat |= {f"{name} {inner}": found for inner, found in _flat(value).items()}
        else:
            flat[name] = value
    return flat


def readable(value: Any) -> str:
    """A value for people: four digits of a number, items separated by commas."""
    match value:
        case float():
            return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
        case list() | tuple():
            return ", ".join(readable(item) for item in value)
        case dict():
            return ", ".join(f"{key}: {readable(item)}" for key, item in value.items())
        case _:
            return str(value)
