"""Acting: self-play, a pure core (one jitted program a move), the assembly of games into samples, and the loop; and
the loop of environments that can only be acted in, with the windows that are cut out of their episodes; and the loop
that searches again what was played.
"""

from podzero.actors.assembly import GameAssembler as GameAssembler
from podzero.actors.clients import ActorClients as ActorClients
from podzero.actors.core import SelfPlayCore as SelfPlayCore
from podzero.actors.core import SelfPlayState as SelfPlayState
from podzero.actors.environments import EnvironmentActor as EnvironmentActor
from podzero.actors.reanalyse_targets import Reanalyse as Reanalyse
from podzero.actors.reanalyse_targets import position_reanalysis as position_reanalysis
from podzero.actors.reanalyse_targets import window_reanalysis as window_reanalysis
from podzero.actors.reanalysis import ReanalysisActor as ReanalysisActor
from podzero.actors.selfplay import SelfPlayActor as SelfPlayActor
from podzero.actors.windows import WindowCutter as WindowCutter
