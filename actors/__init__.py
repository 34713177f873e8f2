"""Acting: self-play, a pure core (one jitted program a move), the assembly of games into samples, and the loop; and
the loop of environments that can only be acted in, with the windows that are cut out of their episodes; and the loop
that searches again what was played.
"""

from podzero.actors.assembly import GameAssembler as GameAssembler
from podzero.actors.core import SelfPlayCore as SelfPlayCore
from podzero.actors.core import SelfPlayState as SelfPlayState
from podzero.actors.doors import Doors as Doors
from podzero.actors.environments import EnvironmentActor as EnvironmentActor
from podzero.actors.reanalysis import ReanalysisActor as ReanalysisActor
from podzero.actors.refreshing import Refresh as Refresh
from podzero.actors.refreshing import position_refresher as position_refresher
from podzero.actors.refreshing import window_refresher as window_refresher
from podzero.actors.selfplay import SelfPlayActor as SelfPlayActor
from podzero.actors.windows import WindowCutter as WindowCutter
