"""The report of a run: one self-contained HTML page, made from the files of its working directory.

`record` reads a run, the modules named after sections make figures of it, `page` renders them.
"""

from podzero.tools.report.record import RunReader as RunReader
from podzero.tools.report.report import make_report as make_report
