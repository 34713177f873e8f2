"""The page of an episode in headless Chromium: frame, slider, curves, keys and another episode."""

import pytest
from pages import MARKS, assert_guarded, assert_narrow, opened, served, status, wait
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from podzero.evaluation.evaluate import evaluate
from podzero.tools.play.episode import number

pytestmark = MARKS


@pytest.fixture(scope="module")
def address(cartpole):
    """The address of a page on which an untrained agent balances a pole."""
    with served(cartpole, "--seed", "5") as address:
        yield address


@pytest.fixture
def browser(address):
    """A new browser whose page shows the first episode."""
    with opened(address) as driver:
        wait(lambda: status(driver).startswith("step 0 of "))
        yield driver


def text(driver):
    return driver.find_element(By.TAG_NAME, "body").text


def frame(driver):
    return driver.find_element(By.CSS_SELECTOR, '[aria-label="gymnasium/CartPole-v1"] img').get_attribute("src")


def press(driver, *keys):
    ActionChains(driver).send_keys(*keys).perform()


def test_it_shows_the_episode_that_an_evaluation_plays(browser, cartpole):
    result = evaluate(cartpole, games=1, seed=5)
    steps = int(result["mean_length"])
    assert f"seed 5: return {number(result['mean_return'])} in {steps} steps" in text(browser)
    assert browser.find_elements(By.CSS_SELECTOR, "canvas, .nicegui-echart svg")


def test_keys_step_through_the_episode_and_its_frames(browser):
    first = frame(browser)
    assert first.startswith("data:image/png;base64,")
    press(browser, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    wait(lambda: status(browser).startswith("step 2 of "))
    assert "value " in status(browser)
    assert ", reward 1.00, return 2.00" in status(browser)
    wait(lambda: frame(browser) != first)
    press(browser, Keys.ARROW_LEFT)
    wait(lambda: status(browser).startswith("step 1 of "))
    press(browser, Keys.END)
    wait(lambda: len(set(status(browser).split(",")[0].split()[1::2])) == 1)
    press(browser, Keys.HOME)
    wait(lambda: frame(browser) == first)


def test_the_slider_and_an_arrow_key_after_it_move_by_what_they_say(browser):
    slider = browser.find_element(By.CSS_SELECTOR, '[aria-label="step"]')
    ActionChains(browser).move_to_element(slider).click().perform()
    wait(lambda: not status(browser).startswith("step 0 of "))
    step = int(status(browser).split()[1])
    press(browser, Keys.ARROW_LEFT)
    wait(lambda: status(browser).startswith(f"step {step - 1} of "))


def test_space_plays_to_the_end_and_pauses(browser):
    press(browser, Keys.SPACE)
    wait(lambda: len(set(status(browser).split(",")[0].split()[1::2])) == 1)
    wait(lambda: "play_arrow" in text(browser))


def test_another_episode_has_the_next_seed(browser):
    browser.find_element(By.CSS_SELECTOR, '[aria-label="another episode (n)"]').click()
    wait(lambda: "seed 6: return" in text(browser))
    press(browser, "n")
    wait(lambda: "seed 7: return" in text(browser))
    assert status(browser).startswith("step 0 of ")


def test_a_narrow_screen_needs_no_sideways_scrolling(browser):
    assert_narrow(browser)


def test_without_the_token_nothing_is_served(address):
    assert_guarded(address)
