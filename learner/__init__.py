"""The learner reads batches from replay, trains the network on a mesh of devices and publishes its parameters.

`Learner` is the training loop; it uses replay and actors only through protocols.
"""

from podzero.learner.build import make_training as make_training
from podzero.learner.checkpoints import CheckpointDamaged as CheckpointDamaged
from podzero.learner.checkpoints import CheckpointMismatch as CheckpointMismatch
from podzero.learner.devices import check_chips as check_chips
from podzero.learner.devices import explained as explained
from podzero.learner.hosts import join as join
from podzero.learner.learner import Learner as Learner
from podzero.learner.metrics import TrainingDiverged as TrainingDiverged
