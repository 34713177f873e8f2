"""Strategies of Hypothesis that damage what podzero reads: trees of plain values, and bytes."""

from __future__ import annotations

import math
from copy import deepcopy

from hypothesis import strategies as st

NUMBERS = [0, -1, 3, 2**31, 2**63, 10**400, -(10**30), 0.5, -0.5, 1e-320, 1e308, math.inf, -math.inf, math.nan]
TEXTS = ["", " ", "a\nb", "x" * 5000, "ü\u202e", "\ud800", "a\0b", "\x1b]0;x\x07", "..", "../../x", "/etc/passwd"]


def values(texts=TEXTS, sections=({}, {"a": 1}, {"": None}, [[]], [None])):
    """Anything that a file may hold in the place of a value."""
    anything = st.recursive(
        st.none() | st.booleans() | st.sampled_from(NUMBERS) | st.sampled_from(texts) | st.text(max_size=5),
        lambda part: st.lists(part, max_size=3) | st.dictionaries(st.text(max_size=5), part, max_size=3),
        max_leaves=6,
    )
    return (anything | st.sampled_from(sections)).map(deepcopy)


def places(tree, above=()):
    """The paths of all sections, lists and values."""
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
        yield (*above, key)
        if isinstance(value, (dict, list)):
            yield from places(value, (*above, key))


@st.composite
def mutated(draw, tree, value=values(), keys=("zz", "")):  # noqa: B008
    """The tree with one to four values replaced, added or removed."""
    tree = deepcopy(tree)
    for _ in range(draw(st.sampled_from([1, 1, 1, 2, 4]))):
        if not (found := list(places(tree))):
            break
        *above, key = draw(st.sampled_from(found))
        within = tree
        for part in above:
            within = within[part]
        match draw(st.sampled_from(["value", "value", "value", "key", "none"])):
            case "value":
                within[key] = draw(value)
            case "key" if isinstance(within, dict):
                within[draw(st.sampled_from(keys))] = draw(value)
            case _:
                del within[key]
    return tree


@st.composite
def damaged(draw, content):
    """The bytes with some of them changed, removed or added, or other bytes."""
    begin, end = sorted(draw(st.tuples(*[st.integers(0, len(content))] * 2)))
    nested = st.sampled_from([b"[" * 100, b"[" * 100_000, b'{"a":' * 20_000, b"9" * 6000])
    inserted = draw(st.binary(max_size=8) | nested)
    return draw(st.sampled_from([content[:begin] + inserted + content[end:], content[:begin], inserted]))
