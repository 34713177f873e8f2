"""The command `export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from podzero.launch.options import Json
from podzero.launch.output import print_json, print_result
from podzero.launch.platforms import keep_compiled_programs
from podzero.player_names import parse_player


def export(
    who: Annotated[
        str,
        typer.Argument(metavar="WHO", help="A trained agent: a working directory as DIR or DIR@STEP, or zoo:NAME."),
    ],
    to: Annotated[
        Path, typer.Option(metavar="FILE", help="The file to write: NAME.onnx (extra `export`) or NAME.stablehlo.")
    ],
    as_json: Json = False,
) -> None:
    """Write the network of a trained agent into a file for ONNX Runtime or for jax.export.

    The file takes batches of any size. It is called on positions of the game and compared with JAX,
    and not kept if it differs.
    """
    parse_player(who)  # refuses wrong names before JAX is imported
    keep_compiled_programs()
    from podzero.tools.export import export_agent

    result = export_agent(who, to.expanduser().absolute())
    if as_json:
        print_json(result)
    else:
        print_result(result.pop("metadata") | result, as_json=False)
