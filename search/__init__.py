"""Batched tree search: `make_search` combines a model with Gumbel or PUCT search, on mctx's trees or dense ones."""

from podzero.search.algorithms import make_search as make_search
from podzero.search.contract import check_search as check_search
from podzero.search.dense_tree import DESCENT as DESCENT
from podzero.search.learned import ModelSearch as ModelSearch
from podzero.search.learned import ModelSearchResult as ModelSearchResult
from podzero.search.learned import make_model_search as make_model_search
from podzero.search.models import Evaluate as Evaluate
from podzero.search.models import LimitedState as LimitedState
from podzero.search.models import Model as Model
from podzero.search.models import limited as limited
from podzero.search.models import network_evaluation as network_evaluation
from podzero.search.models import rules_model as rules_model
