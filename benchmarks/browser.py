"""What people wait for in a browser: the answer of `podzero play --web` to a click, and the opening of a report.

uv run --group dev python benchmarks/browser.py                       # clicks against a player that does not search
uv run --group dev python benchmarks/browser.py --report report.html  # and the opening of a page of `podzero report`

Needs chromedriver (Debian's package chromium-driver). A click is answered when the page shows the reply to the move;
the first one compiles the rules of the game.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

from podzero.tools.play.picture import CELL, MARGIN, BoardPicture

COLUMNS = (0, 2, 4, 6)
"""Where the person plays in each game of connect four, which cannot be over after these moves."""
GAMES = 3
_LONGEST_S = 60
_WATCH = """
const [share, done] = arguments;
const line = document.querySelector('[aria-live=polite]');
const before = line.textContent;
let start = null;
new MutationObserver((changes, observer) => {
  const move = text => Number((text.match(/^move (\\d+)/) || [])[1]);
  if (move(line.textContent) === move(before) + 2) { observer.disconnect(); done(performance.now() - start); }
}).observe(document.body, {subtree: true, childList: true, characterData: true});
const board = document.querySelector('[role=img] img');
const box = board.getBoundingClientRect();
start = performance.now();
const at = {bubbles: true, clientX: box.left + box.width * share, clientY: box.top + box.height / 2};
for (const kind of ['mousedown', 'mouseup', 'click']) board.dispatchEvent(new MouseEvent(kind, at));
"""


def main() -> None:
    """Prints JSON with milliseconds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--report", type=Path, help="a page that `podzero report` has written")
    report = parser.parse_args().report
    first, *times = map(round, clicks())
    found: dict[str, Any] = {"click_ms": {"median": median(times), "longest": max(times), "first": first}}
    if report is not None:
        found["report_ms"] = round(opening(report))
        found["report_bytes"] = report.stat().st_size
    print(json.dumps(found))


def clicks() -> list[float]:
    """Milliseconds from a click to the reply, for moves of games against a player that does not search."""
    times = []
    with _served("random", "--game", "connect_four") as address, _browser() as driver:
        driver.set_script_timeout(_LONGEST_S)
        for _ in range(GAMES):
            driver.get(address)
            WebDriverWait(driver, _LONGEST_S).until(lambda page: page.find_elements(By.CSS_SELECTOR, "[role=img] img"))
            times += [_click(driver, column) for column in COLUMNS]
    return times


def opening(page: Path) -> float:
    """Milliseconds from the request of a local page to the end of its load event."""
    with _browser() as driver:
        driver.get(page.resolve().as_uri())
        timing = "const [page] = performance.getEntriesByType('navigation'); return page.loadEventEnd"
        return float(WebDriverWait(driver, _LONGEST_S).until(lambda page: page.execute_script(timing)))


def _click(driver: Any, column: int) -> float:
    width, _ = BoardPicture("connect_four", (6, 7)).extent
    share = (MARGIN + CELL * (column + 0.5)) / width
    return float(driver.execute_async_script(_WATCH, share))


@contextmanager
def _served(*arguments: str) -> Iterator[str]:
    command = [sys.executable, "-c", "from podzero.launch.cli import main; main()", "play", *arguments, "--web"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"JAX_PLATFORMS": "cpu"})
    assert server.stdout is not None
    try:
        server.stdout.readline()
        yield server.stdout.readline().split()[-1]
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(_LONGEST_S)


@contextmanager
def _browser() -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1200,1000"):
        options.add_argument(argument)
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    try:
        yield driver
    finally:
        driver.quit()


if __name__ == "__main__":
    main()
