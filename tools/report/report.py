"""The report of a run: its sections, and the page that shows them."""

from __future__ import annotations

from podzero.runtime.monitoring.status import StoredStatus
from podzero.tools.report.curves import Metrics
from podzero.tools.report.events import faults
from podzero.tools.report.figures import Section
from podzero.tools.report.overview import machines, overview
from podzero.tools.report.page import Live, Page, render
from podzero.tools.report.record import Record
from podzero.tools.report.settings import settings
from podzero.tools.report.strength import strength
from podzero.tools.report.throughput import throughput
from podzero.tools.report.training import data, games, learning


def make_report(record: Record, live: Live | None = None) -> str:
    """The report as one self-contained HTML page.

    Args:
      record: the run.
      live: for a page that looks for newer reports; None for a file.
    """
    title = f"{record.experiment.name} \N{MIDDLE DOT} podzero"
    return render(Page(title, record.experiment.name, [s for s in sections(record) if not s.empty], live))


def sections(record: Record) -> list[Section]:
    """All sections; those without data are empty."""
    metrics, experiment = Metrics(record.history), record.experiment
    return [
        overview(experiment, record.status, record.history.damaged_lines),
        strength(metrics, experiment, record.ladder),
        learning(metrics),
        data(metrics, experiment),
        throughput(metrics, experiment),
        games(metrics),
        _sample_games(record),
        settings(experiment, record.base, record.changes),
        faults(record.events, _fault_counts(metrics, record.status)),
        machines(record.hardware, record.status),
    ]


def _sample_games(record: Record) -> Section:
    if not record.games:
        return Section("Sample games")
    from podzero.tools.report.sample_games import sample_games  # imports JAX

    return sample_games(record.experiment, record.games)


def _fault_counts(metrics: Metrics, stored: StoredStatus | None) -> dict[str, int]:
    if stored is None:
        return {}
    skipped = metrics.history.values("learner", "count/skipped_steps").values
    return {
        "restarts": stored.status.restarts,
        "failed episodes": stored.status.failed_episodes,
        "skipped learner steps": int(skipped.sum()),
    }
