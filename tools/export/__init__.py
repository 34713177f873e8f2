"""Exports the networks of trained agents to files for other programs: `export_agent` writes and checks them."""

from podzero.tools.export.agent import export_agent as export_agent
from podzero.tools.export.functions import ExportError as ExportError
