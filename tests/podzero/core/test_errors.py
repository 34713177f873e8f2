"""Every error that a user can meet is a `PodzeroError`, which the command line shows without a traceback."""

import ast
import builtins
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
INTERNAL = {
    "Abandoned",
    "CheckpointUnreadable",
    "GtpError",
    "Held",
    "Interrupted",
    "MissingNodes",
    "Refusal",
    "SignatureError",
    "Violation",
}
"""Exceptions that only podzero's own code raises and catches, or that mean a defect in it."""
EXCEPTIONS = {
    name for name, value in vars(builtins).items() if isinstance(value, type) and issubclass(value, BaseException)
}


def test_public_exceptions_are_for_users():
    folders = [path for path in ROOT.iterdir() if path.is_dir() and path.name not in {"tests", ".venv"}]
    classes = [
        node
        for folder in folders
        for path in folder.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    ]
    bases = {node.name: {base.id for base in node.bases if isinstance(base, ast.Name)} for node in classes}
    for_users = {name for name, found in bases.items() if "PodzeroError" in found}
    assert {"ConfigError", "ClusterError", "ReplayTimeout", "LaunchFailed"} <= for_users
    others = {name for name, found in bases.items() if found & EXCEPTIONS and name not in for_users}
    assert {name for name in others if not name.startswith("_")} - {"PodzeroError"} <= INTERNAL
