"""Alarms of a run: when they are sent, and what a webhook that fails does to the run."""

import json
import logging
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.error import HTTPError

import pytest

from podzero.config import load
from podzero.core.errors import ConfigError
from podzero.runtime.monitoring import alarm as module
from podzero.runtime.monitoring.alarm import MOST_WAITING, STALL_S, Alarm, open_alarm
from podzero.runtime.monitoring.status import RunStatus

STATUS = RunStatus("mine", "training", 60.0, step=5, bottleneck="the learner waits for the actors")


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch):
    monkeypatch.setattr(module, "_PAUSE_S", 0.0)


def test_a_run_that_stalls_tells_once_and_once_that_it_goes_on():
    sent = []
    with Alarm("run", sent.append) as alarm:
        for now in (0.0, STALL_S - 1):
            alarm.look(STATUS, now)
        for now in (STALL_S, STALL_S + 1, 3 * STALL_S):
            alarm.look(STATUS, now)
        alarm.look(replace(STATUS, step=6), 3 * STALL_S + 1)
        alarm.look(replace(STATUS, step=6), 4 * STALL_S)
    assert sent == [
        "podzero: run stalls at step 5: 10 minutes without a step and a game. the learner waits for the actors",
        "podzero: run goes on, at step 6",
    ]


def test_a_stalled_run_that_is_stopped_does_not_go_on():
    sent = []
    with Alarm("run", sent.append) as alarm:
        alarm.look(STATUS, 0.0)
        alarm.look(STATUS, STALL_S)
        alarm.look(replace(STATUS, phase="stopping"), STALL_S + 1)
    assert len(sent) == 1


def test_games_are_progress_while_replay_fills():
    sent = []
    with Alarm("run", sent.append) as alarm:
        for hour in range(5):
            alarm.look(replace(STATUS, phase="collecting", step=0, games=hour), 3600.0 * hour)
            alarm.look(replace(STATUS, phase="collecting", step=0, games=hour), 3600.0 * hour + STALL_S / 2)
    assert sent == []


def test_the_end_of_a_run_does_not_stall():
    sent = []
    with Alarm("run", sent.append) as alarm:
        for now in (0.0, STALL_S, 2 * STALL_S):
            alarm.look(replace(STATUS, phase="judging"), now)
    assert sent == []


def test_a_failure_is_told_and_raised():
    sent = []
    with pytest.raises(ConfigError), Alarm("run", sent.append):
        raise ConfigError("no room")
    with pytest.raises(KeyboardInterrupt), Alarm("run", sent.append):
        raise KeyboardInterrupt
    assert sent == ["podzero: run has failed: no room"]


def test_a_webhook_that_fails_is_tried_again_and_the_log_says_so(caplog):
    tried = []

    def refuses(text):
        tried.append(text)
        raise OSError("no route")

    with caplog.at_level(logging.WARNING), Alarm("run", refuses) as alarm:
        alarm.tell("has ended: 3 steps")
    assert len(tried) == 3
    assert "the webhook refuses an alarm, 2 tries left: OSError: no route" in caplog.text


def test_a_webhook_that_hangs_delays_the_end_for_a_bounded_time_and_no_message_piles_up(caplog, monkeypatch):
    monkeypatch.setattr(module, "_LAST_S", 0.1)
    gate = threading.Event()
    with caplog.at_level(logging.WARNING), Alarm("run", lambda text: gate.wait(60)) as alarm:
        for number in range(MOST_WAITING + 5):
            alarm.tell(f"message {number}")
    assert "an alarm is dropped" in caplog.text
    gate.set()


def test_without_a_webhook_nothing_is_done():
    with open_alarm(None, "run") as alarm:
        alarm.tell("has ended")
        alarm.look(STATUS, 0.0)
        alarm.look(STATUS, 10 * STALL_S)
    assert alarm._waiting.empty()


def test_a_message_is_posted_as_chats_read_it(monkeypatch):
    received = []

    class Chat(BaseHTTPRequestHandler):
        def do_POST(self):
            received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Chat) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("CHAT", f"http://127.0.0.1:{server.server_port}/hook")
        with open_alarm("env:CHAT", "mine") as alarm:
            alarm.tell("has ended: 5 minutes are reached")
        server.shutdown()
    text = "podzero: mine has ended: 5 minutes are reached"
    assert received == [{"text": text}]


def test_discord_reads_another_field_and_refuses_programs_without_a_name(monkeypatch):
    sent = []

    def opened(request, timeout):
        sent.append((json.loads(request.data), request.get_header("User-agent"), timeout))
        return HTTPError("", 200, "", {}, None)

    monkeypatch.setattr(module.urllib.request, "urlopen", opened)
    with open_alarm("https://discord.com/api/webhooks/1/x", "mine") as alarm:
        alarm.tell("has ended")
    assert sent == [({"content": "podzero: mine has ended"}, "podzero", 10.0)]


def test_what_is_no_address_is_refused(monkeypatch):
    for wrong in ("slack", "ftp://x", "env:1a", "env:a b"):
        with pytest.raises(ConfigError, match=r"expected https://ADDRESS or env:NAME"):
            load("tic_tac_toe", [f"metrics.alert={wrong}"])
    monkeypatch.setenv("CHAT", "slack")
    with pytest.raises(ConfigError, match="the environment variable CHAT holds no address"):
        open_alarm("env:CHAT", "run")
    assert load("tic_tac_toe", ["metrics.alert=https://chat.example/x"]).metrics.alert == "https://chat.example/x"
