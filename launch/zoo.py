"""The command `zoo`."""

from __future__ import annotations

from podzero.launch.options import Json
from podzero.launch.output import print_json
from podzero.player_names import PREFIX, zoo_card, zoo_names


def zoo(as_json: Json = False) -> None:
    """List the trained agents that come with podzero, to play against at once."""
    cards = {f"{PREFIX}{name}": zoo_card(name) for name in zoo_names()}
    if as_json:
        print_json(cards)
        return
    from rich.console import Console

    console = Console()
    for name, card in cards.items():
        console.print(f"[bold cyan]{name}[/]  {card['network']}; {card['hours']:g} h on {card['hardware']}")
        for sentence in card["judged"]:
            console.print(f"  {sentence}", highlight=False)
        console.print(f"  {card['command']}  (commit {card['commit']}, {card['date']})", highlight=False, style="dim")
    console.print(f"\nPlay: podzero play {next(iter(cards))} --web", highlight=False)
