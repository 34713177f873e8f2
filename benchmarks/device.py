"""What the TPU compiler says of self-play on one v5e chip, for the board games of the built-in experiments.

uv run python benchmarks/device.py
uv run python benchmarks/device.py --only connect_four

Results are written to `benchmarks/results/device.json` as they come; `uv run python benchmarks/pages.py` writes the
table in docs/performance.md from them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from datetime import date
from importlib.metadata import version
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "device.json"
GAMES: dict[str, tuple[str, ...]] = {
    "connect_four": ("actors.games=4096",),
    "othello": ("actors.games=512",),
    "hex": ("actors.games=256",),
    "go_9x9": ("actors.games=256",),
    "gardner_chess": ("actors.games=256", "search.tree=dense", "search.slots=64"),
    "chess": ("actors.games=128", "search.tree=dense", "search.slots=64"),
}
"""Overrides of each experiment, among them the number of games that is best for it."""
TIMEOUT_S = 3600.0


def main() -> None:
    """Compiles the programs one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=GAMES, default=list(GAMES), help="experiments")
    for game in parser.parse_args().only:
        report = compiled(game)
        known = json.loads(RESULTS.read_text())["results"] if RESULTS.exists() else {}
        known[game] = {"overrides": GAMES[game], "date": str(date.today()), "report": report}
        compiler = f"libtpu {version('libtpu')}, jax {version('jax')}"
        RESULTS.write_text(json.dumps({"compiler": compiler, "results": known}, indent=1) + "\n")
        print(f"{game}: {report.get('ratio', 'does not fit')}", flush=True)


def compiled(game: str) -> dict[str, object]:
    """What `podzero compile` says, without the programs that others have too.

    Raises:
      CalledProcessError: it failed.
    """
    command = (sys.executable, "-c", "from podzero.launch.cli import main; main()", "compile", game, *GAMES[game])
    arguments = ("--topology", "v5e-1", "--program", "device", "--json")
    done = subprocess.run((*command, *arguments), stdout=subprocess.PIPE, text=True, timeout=TIMEOUT_S, check=False)
    report: dict[str, object] = json.loads(done.stdout)
    return report


if __name__ == "__main__":
    main()
