"""The code and the commands that a page of the documentation prints."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SHORT = (
    "stop.steps=40 network.channels=8 replay.min_size=512 search.simulations=8 actors.games=32 "
    "evaluation.final_minutes=0"
)
"""Settings with which a training of a page takes a minute."""


class PrintedPage:
    """A page of `docs/`."""

    def __init__(self, name):
        text = (ROOT / "docs" / name).read_text()
        self._blocks = re.findall(r"^```(\w+) ?(\S*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)

    @property
    def files(self):
        """The texts of the files that the page tells to save, by name."""
        return {name: text for _, name, text in self._blocks if name}

    def blocks(self, language):
        """The other blocks in a language."""
        return [text for kind, name, text in self._blocks if kind == language and not name]

    def save(self, folder):
        """Writes the files of the page."""
        for name, text in self.files.items():
            (folder / name).write_text(text)


def run_script(script):
    """Runs commands with this environment's `podzero`; returns what they print."""
    podzero = Path(sys.executable).parent / "podzero"
    script = script.replace("podzero ", f"{podzero} ")
    found = subprocess.run(["bash", "-euc", script], capture_output=True, text=True, timeout=800, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout
