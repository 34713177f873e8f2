"""The server of `podzero play --web`, and headless Chromium that opens its page."""

import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By

DRIVER = shutil.which("chromedriver")
MARKS = [
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif(DRIVER is None, reason="no chromedriver here: apt-get install chromium-driver"),
]
"""Of all tests that need a browser."""


@contextmanager
def served(*arguments, verb=("play", "--web")):
    """The address of the page that `podzero play ARGUMENTS --web` serves, or another command."""
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "BROWSER": "true"}
    environment.pop("PYTEST_CURRENT_TEST")  # NiceGUI would not serve
    command = [sys.executable, "-c", "from podzero.launch.cli import main; main()"]
    server = subprocess.Popen([*command, *verb, *arguments], stdout=subprocess.PIPE, text=True, env=environment)
    try:
        server.stdout.readline()
        yield server.stdout.readline().split()[-1]
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(30)


@contextmanager
def opened(address):
    """A new browser that has opened a page."""
    options = webdriver.ChromeOptions()
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1200,1000"):
        options.add_argument(argument)
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    try:
        driver.get(address)
        wait(lambda: driver.find_elements(By.CSS_SELECTOR, "[role=img]"))
        yield driver
    finally:
        driver.quit()


def wait(condition, seconds=120):
    """Waits until `condition()` is true, and returns what it says."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "the page did not change in time"
        time.sleep(0.1)
    return found


def status(driver):
    """The line in which a page says what it shows or does."""
    return driver.find_element(By.CSS_SELECTOR, "[aria-live=polite]").text


def assert_narrow(driver):
    """Checks that a page fits a narrow screen without sideways scrolling."""
    driver.set_window_size(380, 900)
    wait(lambda: driver.execute_script("return document.documentElement.scrollWidth <= window.innerWidth"))


def assert_guarded(address):
    """Checks that nothing is served to those who do not know the token in the address of a page."""
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(address.partition("?")[0], timeout=10)
    assert refused.value.code == 403
