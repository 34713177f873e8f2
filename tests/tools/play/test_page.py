"""The page in headless Chromium: a game by mouse and keyboard, on wide and narrow screens."""

import re
from importlib.resources import files
from pathlib import Path

import pytest
from pages import MARKS, assert_guarded, assert_narrow, opened, served, status, wait
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from podzero.evaluation.games import GamesFolder, PlayedGame
from podzero.files.workdir import Workdir

pytestmark = MARKS


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """The address of a page on which tic-tac-toe is played against tree search, with three kept games."""
    run = tmp_path_factory.mktemp("run")
    folder = GamesFolder(Workdir(run).games)
    folder.write(20, [PlayedGame("@20", "random", (0, 3, 1, 4, 2), 1.0)])
    folder.write(
        40, [PlayedGame("@40", "random", (0, 4, 8, 2, 6), 0.5, end="cut off"), PlayedGame("x", "y", (0, 0), 0)]
    )
    with served("mcts:50", "random", "--game", "tic_tac_toe", "--kept", str(run)) as address:
        yield address


@pytest.fixture
def browser(address):
    """A new browser that has opened the page."""
    with opened(address) as driver:
        yield driver


def click_middle(driver):
    ActionChains(driver).move_to_element(driver.find_element(By.CSS_SELECTOR, "[role=img]")).click().perform()


def click_middle_below(driver):
    """Clicks the square below the one in the middle."""
    board = driver.find_element(By.CSS_SELECTOR, "[role=img]")
    third = board.size["height"] // 4
    ActionChains(driver).move_to_element_with_offset(board, 0, third).click().perform()


def test_a_click_plays_a_move_and_the_player_replies(browser):
    assert status(browser) == "move 1: first player to move"
    click_middle(browser)
    wait(lambda: status(browser) == "move 3: first player to move")
    text = browser.find_element(By.TAG_NAME, "body").text
    assert "b2" in text
    ActionChains(browser).send_keys(Keys.ARROW_LEFT).perform()
    wait(lambda: status(browser) == "move 2: second player to move")
    ActionChains(browser).send_keys(Keys.HOME).perform()
    wait(lambda: status(browser) == "move 1: first player to move")


def test_a_search_shows_its_moves_its_tree_and_another_player(browser):
    browser.find_element(By.CSS_SELECTOR, '[aria-label="search this position"]').click()
    wait(lambda: "random: " in browser.find_element(By.TAG_NAME, "body").text)
    assert "first player's win rate" in browser.find_element(By.TAG_NAME, "body").text
    browser.find_element(By.XPATH, "//*[text()='Search tree']").click()
    wait(lambda: "prior 11.1%" in browser.find_element(By.TAG_NAME, "body").text)


def choose(driver, text):
    """Types into the list of kept games, and takes the first that is found."""
    entry = driver.find_element(By.CSS_SELECTOR, "input[aria-label='kept games']")
    entry.send_keys(Keys.CONTROL, "a")
    entry.send_keys(text)
    wait(lambda: driver.find_elements(By.CSS_SELECTOR, "[role=option]"))[0].click()


def test_a_kept_game_is_stepped_through_and_played_on(browser):
    choose(browser, "@20")
    wait(lambda: "step 20: @20 - random 1-0, 5 plies" in browser.page_source)
    assert status(browser) == "move 1: first player to move"
    browser.find_element(By.CSS_SELECTOR, '[aria-label="end (End)"]').click()
    wait(lambda: status(browser) == "first player wins")
    browser.find_element(By.CSS_SELECTOR, '[aria-label="one back (left)"]').click()
    wait(lambda: status(browser) == "move 5: first player to move")
    click_middle_below(browser)
    wait(lambda: status(browser) != "move 5: first player to move")


def test_a_kept_game_of_other_rules_is_refused(browser):
    choose(browser, "x - y")
    wait(lambda: "this is a game with other rules than tic_tac_toe" in browser.find_element(By.TAG_NAME, "body").text)


def test_a_position_is_set_by_its_moves_and_wrong_ones_are_explained(browser):
    entry = browser.find_element(By.CSS_SELECTOR, "input[type=text]")
    entry.send_keys("a1 b1 a2 b2", Keys.ENTER)
    wait(lambda: status(browser) == "move 5: first player to move")
    entry.send_keys("a1 a1", Keys.ENTER)
    wait(lambda: "move 2: 'a1' is illegal in this position" in browser.find_element(By.TAG_NAME, "body").text)
    entry.send_keys(Keys.CONTROL, "a")
    entry.send_keys("a3", Keys.ENTER)
    wait(lambda: status(browser) == "first player wins")


def button(driver, hint):
    return driver.find_element(By.CSS_SELECTOR, f'button[aria-label="{hint}"]')


def choose_file(driver, file, text):
    """Opens a file of this text on the page."""
    file.write_text(text)
    driver.find_element(By.CSS_SELECTOR, "input[type=file]").send_keys(str(file))


def said(driver):
    return driver.find_element(By.TAG_NAME, "body").text


def test_a_game_is_opened_reviewed_and_saved_with_notes(browser, tmp_path):
    browser.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})
    names = '[White "Ann"]\n[Black "Bob"]\n'
    choose_file(browser, tmp_path / "mine.pgn", names + '[Variant "tic_tac_toe"]\n\n1. a1 a2 2. b1 a3 3. c1 1-0\n')
    wait(lambda: "a1 a2 b1 a3 c1" in said(browser))
    assert status(browser) == "move 1: first player to move"
    button(browser, "review: search all positions").click()
    wait(lambda: "The costliest moves" in said(browser))
    costliest = browser.find_element(By.XPATH, "//button[contains(., '4. second player a3 costs')]")
    costliest.click()
    wait(lambda: status(browser) == "move 4: second player to move")
    button(browser, "save the game").click()
    saved = tmp_path / "tic_tac_toe.pgn"
    wait(saved.exists)
    text = " ".join(saved.read_text().split())
    assert '[White "Ann"] [Black "Bob"]' in text
    assert re.search(r"2\. b1 \{\[%eval [^}]*\} 2\.\.\. a3 \{\[%eval [-\d.]+\] costs \d+% of a win", text)


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("wrong.pgn", '[Variant "tic_tac_toe"]\n\n1. a1 a1 *', "a1"),
        ("empty.sgf", "", "game.sgf"),
        ("not.pgn", "\0", "game.pgn"),
    ],
)
def test_a_file_that_is_no_game_of_these_rules_is_refused(browser, tmp_path, name, text, why):
    choose_file(browser, tmp_path / name, text)
    refusal = wait(lambda: browser.find_elements(By.CSS_SELECTOR, ".q-notification__message"))[0].text
    assert why in refusal
    assert "/" not in refusal
    assert status(browser) == "move 1: first player to move"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(browser, scheme):
    scheme_feature = {"name": "prefers-color-scheme", "value": scheme}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme_feature]})
    browser.refresh()
    wait(lambda: status(browser) == "move 1: first player to move")
    button(browser, "search this position").click()
    wait(lambda: "visits" in said(browser))
    browser.execute_script(files("axe_core_python").joinpath("axe.min.js").read_text())
    found = browser.execute_async_script("axe.run().then(arguments[0])")["violations"]
    assert [one for one in found if one["impact"] in ("serious", "critical")] == []


def test_go_begins_with_a_handicap_and_shows_who_owns_the_board():
    with served("zoo:go_9x9", "--simulations", "2") as address, opened(address) as browser:
        browser.find_element(By.CSS_SELECTOR, "[aria-label=handicap]").click()
        wait(lambda: browser.find_elements(By.XPATH, "//*[@role='option'][contains(., '2')]"))[0].click()
        button(browser, "new game").click()
        wait(lambda: status(browser) == "move 5: Black to move")
        browser.find_element(By.CSS_SELECTOR, "[role=switch]").click()
        owners = "return document.querySelectorAll('[role=img] svg rect[opacity]').length"
        wait(lambda: browser.execute_script(owners) == 81)


def test_a_game_that_draws_itself_is_played_on_its_picture(tmp_path):
    plain = (Path(__file__).parents[3] / "podzero" / "configs" / "own_game.py").read_text()
    (tmp_path / "drawn.py").write_text(
        f"{plain}\n\nclass Drawn(Domineering):\n    def render(self):\n"
        "        cells = np.where(self.taken[..., None], [90, 60, 30], [230, 220, 200]).astype(np.uint8)\n"
        "        return cells.repeat(20, 0).repeat(20, 1)\n\n    def clone(self):\n        twin = Drawn()\n"
        "        twin.taken, twin.mover = self.taken.copy(), self.mover\n        return twin\n"
    )
    game = f'env: {{name: simulator, id: "{tmp_path}/drawn.py:Drawn", max_plies: 12}}\nnetwork: {{name: resnet}}\n'
    (tmp_path / "drawn.yaml").write_text(game)
    with served("mcts:4", "--game", str(tmp_path / "drawn.yaml")) as address, opened(address) as driver:
        assert driver.find_elements(By.CSS_SELECTOR, "svg image")[0].get_attribute("href").startswith("data:image/png")
        click_middle(driver)
        wait(lambda: status(driver) == "move 3: first player to move")


def test_moves_of_open_spiel_are_typed_by_their_names(tmp_path):
    (tmp_path / "foreign.yaml").write_text("env: {name: open_spiel, id: tic_tac_toe}\nnetwork: {name: resnet}\n")
    with served("mcts:4", "--game", str(tmp_path / "foreign.yaml")) as address, opened(address) as driver:
        driver.find_element(By.CSS_SELECTOR, "input[type=text]").send_keys("x(1,1)", Keys.ENTER)
        wait(lambda: status(driver) == "move 3: first player to move")


def test_a_narrow_screen_needs_no_sideways_scrolling(browser):
    assert_narrow(browser)


def test_without_the_token_nothing_is_served(address):
    assert_guarded(address)
