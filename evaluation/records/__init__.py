"""Games as files: SGF for Go, Othello and Hex, PGN for the others, and JSON lines that podzero reads again."""

from podzero.evaluation.records.files import record_suffix as record_suffix
from podzero.evaluation.records.files import record_text as record_text
from podzero.evaluation.records.files import write_records as write_records
from podzero.evaluation.records.lines import game_from_tree as game_from_tree
from podzero.evaluation.records.lines import game_to_tree as game_to_tree
