"""Actors produce training samples: they play with the newest parameters and write what they played to replay.

`SelfPlayActor` and `DeviceActor` play games (AlphaZero), `EnvironmentActor` acts in environments (MuZero), and
`ReanalysisActor` searches stored samples again.
"""

from podzero.actors.clients import ActorClients as ActorClients
from podzero.actors.core import SelfPlayCore as SelfPlayCore
from podzero.actors.core import SelfPlayState as SelfPlayState
from podzero.actors.core import StartPool as StartPool
from podzero.actors.core import explore as explore
from podzero.actors.device_actor import DeviceActor as DeviceActor
from podzero.actors.device_actor import RolloutCore as RolloutCore
from podzero.actors.environments import EnvironmentActor as EnvironmentActor
from podzero.actors.reanalysis import ReanalysisActor as ReanalysisActor
from podzero.actors.reanalysis import position_reanalysis as position_reanalysis
from podzero.actors.reanalysis import window_reanalysis as window_reanalysis
from podzero.actors.selfplay import Opponent as Opponent
from podzero.actors.selfplay import SelfPlayActor as SelfPlayActor
