"""Parameters of the acting network: published through Ray, and saved to disk as snapshots."""

from podzero.params.local import LocalParams as LocalParams
from podzero.params.matching import check_matches as check_matches
from podzero.params.ray_store import ParamStore as ParamStore
from podzero.params.ray_store import ParamStoreLost as ParamStoreLost
from podzero.params.ray_store import RayParamSink as RayParamSink
from podzero.params.ray_store import RayParamSource as RayParamSource
from podzero.params.ray_store import start_param_store as start_param_store
from podzero.params.snapshots import SnapshotError as SnapshotError
from podzero.params.snapshots import load_snapshot as load_snapshot
from podzero.params.snapshots import save_snapshot as save_snapshot
from podzero.params.snapshots import snapshot_experiment as snapshot_experiment
from podzero.params.snapshots import snapshot_steps as snapshot_steps
