"""Self-play: a pure core (one jitted program a move), the assembly of games into samples, and the loop."""

from podzero.actors.assembly import GameAssembler as GameAssembler
from podzero.actors.core import SelfPlayCore as SelfPlayCore
from podzero.actors.core import SelfPlayState as SelfPlayState
from podzero.actors.selfplay import SelfPlayActor as SelfPlayActor
