"""Every command line in the documents, the experiments, the program's messages and its help can be typed as shown."""

import re

import pytest
from command_checks import EXPECTED, REFUSED, check
from command_lines import (
    DOCUMENTS,
    CommandLine,
    command_lines,
    is_command_line,
    lines_of_blocks,
    of_experiment,
    of_markdown,
    of_source,
)

LINES = command_lines()
NO_COMMANDS = {"README.md", "architecture.md", "evaluation.md", "index.md", "operations.md", "training.md"}
"""Documents with blocks that show files, formulas or the way of the data."""


@pytest.mark.usefixtures("beside_pages")
@pytest.mark.parametrize("line", LINES, ids=lambda line: f"{line.where}: {line.text}"[:100])
def test_a_command_line_can_be_typed_as_it_is_shown(line):
    refusal = REFUSED.get(line.text)
    if refusal is None:
        check(line)
    else:
        with pytest.raises(EXPECTED, match=re.escape(refusal)):
            check(line)


def texts(found):
    return [line.text for line in found]


def test_pages_show_commands_in_blocks_and_in_backticks():
    page = """Run `podzero zoo`, or `podzero evaluate
WHO`; not `podzero` or podzero train.

    $ podzero train hex --check    # what it is
    env: {name: hex}

| `podzero engine WHO --protocol gtp\\|uci` |

```sh
podzero report runs/a \\
    --serve
```

```python
print("podzero train")
```
"""
    assert texts(of_markdown(page, "page")) == [
        "podzero train hex --check", "podzero report runs/a --serve",
        "podzero zoo", "podzero evaluate WHO", "podzero", "podzero engine WHO --protocol gtp|uci",
    ]  # fmt: skip


def test_messages_show_commands_with_what_they_fill_in():
    program = """
raise ConfigError(f"{name} failed; see `podzero status {name}`, or podzero evaluate {root}. podzero cannot train it")
"""
    assert texts(of_source(program, "program")) == ["podzero status ⟦name⟧", "podzero evaluate ⟦root⟧"]


def test_the_head_of_an_experiment_shows_how_it_is_run_and_judged():
    head = "# A game.\n#\n# Run:      podzero train hex\n# Judge:    podzero evaluate runs/hex\n# Time: long.\n"
    assert texts(of_experiment(head, "hex.yaml")) == ["podzero train hex", "podzero evaluate runs/hex"]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_a_block_begins_with_a_known_program_or_shows_no_commands(document):
    """A block of commands has at least one known program, so that a line with another one is noticed."""
    blocks = {}
    for words, number in lines_of_blocks(document.read_text()):
        blocks.setdefault(number, []).append(words)
    for lines in blocks.values():
        known = [is_command_line(words) for words in lines]
        assert all(known) or (not any(known) and document.name in NO_COMMANDS), lines


def test_a_message_that_names_an_unknown_command_fails():
    check(CommandLine("podzero evaluate ⟦root⟧", "program", "message"))
    with pytest.raises(AssertionError, match="no command 'evalute'"):
        check(CommandLine("podzero evalute ⟦root⟧", "program", "message"))


@pytest.mark.usefixtures("beside_pages")
@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("podzero tarin hex", "no command 'tarin'"),
        ("podzero train", "CONFIG"),
        ("podzero train conect_four", "did you mean 'connect_four'"),
        ("podzero train hex learner.batchsize=3", "no such field"),
        ("podzero evaluate runs/nowhere", "unknown player"),
        ("podzero evaluate zoo:cartpole --opponent mcts:2 --seeds 3", "No such option"),
        ("podzero bench selfplay go_9x9", "expected section.field=value"),
        ("podzero status runs/nowhere", "no experiment.yaml"),
        ("uv run --group dev python benchmarks/nowhere.py", "no script"),
        ("pytest tests/runtime/test_pod.py -k nothing_like_it", "no test nothing_like_it"),
        ("pip install --no-such-option x", "not known"),
        ("docker build --file launch/targets/Dockerfile --build-arg NOTHING=1 .", "NOTHING"),
        ("ray begin --head", "no command begin"),
        ("brew install uv", "add `brew` to CHECKS or NOT_CHECKED"),
    ],
)
def test_a_command_that_cannot_be_typed_fails(text, why):
    with pytest.raises((*EXPECTED, AssertionError, pytest.fail.Exception)) as failure:
        check(CommandLine(text, "page", "block"))
    error = failure.value
    assert why in (error.format_message() if hasattr(error, "format_message") else str(error))
