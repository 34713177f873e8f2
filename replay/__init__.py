"""Replay holds training samples between actors, which write them, and the learner, which reads batches.

Each shard is a Reverb server in a process and a Python environment of its own (`reverb_server/`). This package speaks
Reverb's wire protocol (`wire.py`) and imports neither Reverb nor TensorFlow.
"""

from podzero.replay.errors import EnvironmentUnusable as EnvironmentUnusable
from podzero.replay.errors import ReplayRestoreError as ReplayRestoreError
from podzero.replay.errors import ReplayTimeout as ReplayTimeout
from podzero.replay.errors import SignatureError as SignatureError
from podzero.replay.process import server_python as server_python
from podzero.replay.reader import LEAST_PRIORITY as LEAST_PRIORITY
from podzero.replay.reader import make_reader as make_reader
from podzero.replay.reader import make_state_reader as make_state_reader
from podzero.replay.records import Episode as Episode
from podzero.replay.records import EpisodeLayout as EpisodeLayout
from podzero.replay.records import PositionLayout as PositionLayout
from podzero.replay.records import RecordsWriter as RecordsWriter
from podzero.replay.records import open_records as open_records
from podzero.replay.server import ReplayServer as ReplayServer
from podzero.replay.shard import REANALYSED as REANALYSED
from podzero.replay.shard import STATES as STATES
from podzero.replay.shard import tables_of as tables_of
from podzero.replay.signature import SampleSignature as SampleSignature
from podzero.replay.writer import ShardedWriter as ShardedWriter
