"""Actors produce training samples: they play with the newest parameters and write what they played to replay.

`SelfPlayActor` and `DeviceActor` play games (AlphaZero), `EnvironmentActor` acts in environments (MuZero), and
`ReanalysisActor` searches stored samples again.
"""

from podzero.actors.clients import ActorClients as ActorClients
from podzero.actors.reanalysis import ReanalysisActor as ReanalysisActor
from podzero.actors.selfplay import Opponent as Opponent
