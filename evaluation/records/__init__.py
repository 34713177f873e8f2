"""Games as files that other programs read: SGF for Go, Othello and Hex, PGN for the others."""

from podzero.evaluation.records.files import record_suffix as record_suffix
from podzero.evaluation.records.files import record_text as record_text
from podzero.evaluation.records.files import write_records as write_records
