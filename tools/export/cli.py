"""The command `export`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from podzero.core.machine import keep_compiled_programs
from podzero.files.players import parse_player
from podzero.tools.commands.options import Json, Trained
from podzero.tools.commands.printing import Rows, print_result


def export(
    who: Trained,
    to: Annotated[Path, typer.Option(metavar="FILE", help="Write NAME.onnx (extra `export`) or NAME.stablehlo.")],
    as_json: Json = False,
) -> None:
    """Write the network of a trained agent to a file for ONNX Runtime or jax.export.

    The exported network takes batches of any size.
    Its results are compared with JAX's on positions of the game; if they differ, the file is deleted.
    """
    # Before the import of JAX, which takes seconds.
    parse_player(who)
    keep_compiled_programs()
    from podzero.tools.export.agent import export_agent

    print_result(export_agent(who, to.expanduser().absolute()), as_json, export_rows)


def export_rows(found: Mapping[str, Any]) -> Rows:
    """The rows of exported files."""
    about, (first, *more) = found["metadata"], found["files"]
    shape = " x ".join(map(str, about["observation_shape"]))
    actions = about["actions"]
    what = f"{actions:,} actions" if isinstance(actions, int) else f"actions {' x '.join(map(str, actions))}"
    output, difference = max(found["differences"].items(), key=lambda item: item[1])
    sizes = ", ".join(map(str, found["batch_sizes"]))
    return [
        ("files", first),
        *(("", file) for file in more),
        ("agent", found["player"]),
        ("game", about["game"]),
        ("network", f"{about['network']}: observation {shape} {about['observation_dtype']}, {what}"),
        ("step", f"{about['step']:,}"),
        ("podzero", about["podzero"]),
        (
            "checked",
            f"on batches of {sizes}: differs from JAX by at most {difference:.2g} ({output}); {found['bound']:g} is "
            "allowed",
        ),
    ]
