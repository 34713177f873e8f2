"""A full disk for the tests of this package."""

import resource
import signal

import pytest


@pytest.fixture
def full_disk():
    """Limits the size of files, so that a write beyond the limit is cut off and fails as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    def limit(size):
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft if size is None else size, hard))

    yield limit
    limit(None)
    signal.signal(signal.SIGXFSZ, before)
