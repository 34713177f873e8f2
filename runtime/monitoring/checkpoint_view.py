"""What the screen says of the checkpoints of a run."""

from __future__ import annotations

from collections.abc import Iterator

from podzero.runtime.monitoring.status import RunStatus


def checkpoint_line(status: RunStatus, age: str) -> str:
    """The `age` of the newest checkpoint and the failed saves since, for a line of text."""
    if status.checkpoint_step is not None:
        told = f"checkpoint {age} old"
    else:
        told = f"no checkpoint for {age}" if status.failed_saves else "no checkpoint yet"
    return f"{told} ({status.failed_saves:,} SAVES FAILED)" if status.failed_saves else told


def checkpoint_items(status: RunStatus, age: str) -> Iterator[str]:
    """The same for the panel, with rich's markup, and the samples that damaged checkpoints have cost."""
    if status.checkpoint_step is not None:
        yield f"step {status.checkpoint_step:,}, {age} old"
    else:
        yield f"none for {age}" if status.failed_saves else "none yet"
    if status.failed_saves:
        yield f"[bold red]{status.failed_saves:,} saves failed since: all that time is lost if the run ends[/bold red]"
    if status.damaged_shards:
        yield f"[yellow]{status.missing_samples:,} samples missing from damaged ones[/yellow]"
