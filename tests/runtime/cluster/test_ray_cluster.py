"""A cluster on this machine."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

ASK_WITHOUT_TOKEN = """
import sys
from ray._raylet import GcsClient
from ray.exceptions import AuthenticationError
try:
    GcsClient(address=sys.argv[1])
except AuthenticationError:
    print("refused")
"""
START = """
import subprocess, sys
from podzero.runtime.cluster.ray_cluster import connect
with connect(None, cpus=1) as cluster:
    print(cluster.nodes()[0].host, flush=True)
    subprocess.run([sys.executable, *sys.argv[1:], cluster.address], env={"RAY_AUTH_MODE": "disabled"}, timeout=60)
"""


@pytest.mark.parametrize("before", ["", "import ray"])
def test_a_cluster_asks_for_a_token_even_if_ray_was_imported_before(before):
    plain = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    command = [sys.executable, "-c", before + START, "-c", ASK_WITHOUT_TOKEN]
    said = subprocess.run(command, env=plain, capture_output=True, text=True, timeout=240, check=True).stdout
    assert said.split() == ["127.0.0.1", "refused"]
