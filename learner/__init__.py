"""Sharded training. `Learner` is the door; it is plain Python and JAX, and knows replay and actors by protocol only."""

from podzero.learner.checkpoints import CheckpointDamaged as CheckpointDamaged
from podzero.learner.checkpoints import CheckpointMismatch as CheckpointMismatch
from podzero.learner.checkpoints import LearnerCheckpoints as LearnerCheckpoints
from podzero.learner.devices import check_chips as check_chips
from podzero.learner.devices import explained as explained
from podzero.learner.hosts import HostLost as HostLost
from podzero.learner.hosts import Membership as Membership
from podzero.learner.hosts import join as join
from podzero.learner.learner import Learner as Learner
from podzero.learner.metrics import TrainingDiverged as TrainingDiverged
from podzero.learner.prefetching import Prefetcher as Prefetcher
from podzero.learner.training import Training as Training
from podzero.learner.training import make_training as make_training
