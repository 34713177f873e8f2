"""Acting: self-play, a pure core (one jitted program a move), the assembly of games into samples, and the loop; and
the loop of environments that can only be acted in, with the windows that are cut out of their episodes.
"""

from podzero.actors.assembly import GameAssembler as GameAssembler
from podzero.actors.core import SelfPlayCore as SelfPlayCore
from podzero.actors.core import SelfPlayState as SelfPlayState
from podzero.actors.environments import EnvironmentActor as EnvironmentActor
from podzero.actors.selfplay import SelfPlayActor as SelfPlayActor
from podzero.actors.windows import WindowCutter as WindowCutter
