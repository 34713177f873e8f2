"""An engine for tic-tac-toe by GTP, chess by UCI, shogi by USI, or backgammon, that misbehaves on request.

    fake_engine.py PROTOCOL BEHAVIOUR MARKER [TOLD]

It misbehaves while the file MARKER does not exist, which it then creates; afterwards it plays the first free square, a
move of a pawn, or 8/5 6/5. What UCI or USI told it, it writes to the file TOLD.
"""

import sys
import time
from pathlib import Path

PROTOCOL, BEHAVIOUR, MARKER = sys.argv[1], sys.argv[2], Path(sys.argv[3])


def say(text):
    print(text, flush=True)


def misbehave(played):
    """What is said instead of a move, or nothing if the engine behaves."""
    if MARKER.exists() or (BEHAVIOUR == "illegal" and not played):
        return None
    if BEHAVIOUR != "resigns":
        MARKER.touch()
    match BEHAVIOUR:
        case "hangs":
            time.sleep(60)
        case "crashes":
            sys.exit("out of paper")
        case "chatters":
            while True:
                say("thinking")
        case "nonsense":
            return "banana"
        case "illegal":
            return played[0]
        case "resigns":
            return "resign"
    return None


def gtp():
    played = []
    for line in sys.stdin:
        number, command, *rest = line.split()
        answer = ""
        match command:
            case "clear_board":
                played = []
            case "play":
                played.append(rest[1])
            case "genmove":
                free = [f"{c}{r}" for r in "123" for c in "abc" if f"{c}{r}" not in played]
                answer = misbehave(played) or free[0]
            case "quit":
                return
            case "refused":
                say(f"?{number} no\n")
                continue
        say(f"={number} {answer}\n")


def uci():
    for line in sys.stdin:
        for told in sys.argv[4:]:
            with Path(told).open("a") as file:
                file.write(line)
        match line.split()[0]:
            case "uci" | "usi":
                say(f"id name fake\noption name Hash type spin default 16\n{PROTOCOL}ok")
            case "isready":
                say("readyok")
            case "go":
                say("info depth 1 score cp 0")
                say(f"bestmove {misbehave([]) or {'uci': 'e2e4', 'usi': '7g7f'}[PROTOCOL]}")
            case "quit":
                return


def gnubg():
    asked = 0
    for line in sys.stdin:
        match line.split()[0]:
            case "hint":
                # The first question is asked when it starts.
                asked += 1
                say("An engine of a test.")
                say(f"    1. Cubeful 0-ply    {(asked > 1 and misbehave([])) or '8/5 6/5'}       Eq.: +0.200")
            case "quit":
                return


{"gtp": gtp, "gnubg": gnubg}.get(PROTOCOL, uci)()
