"""Networks of trained agents as files for other programs: `export_agent` writes and checks them."""

from podzero.export.agent import export_agent as export_agent
from podzero.export.errors import ExportError as ExportError
