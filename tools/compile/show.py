"""Prints verdicts as text."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from podzero.chips import Slice
from podzero.tools.compile.verdict import SPACES, Verdict, summary


def show(
    console: Console,
    where: Slice,
    verdicts: list[Verdict],
    playing: dict[str, Any],
    feeding: dict[str, float] | None = None,
) -> None:
    """Prints the slice, one table for each program, the rates of self-play on a chip (`playing`), and what the learner
    asks for (`feeding`).
    """
    chip = where.chip
    console.print(
        f"[bold]{where.short_name}[/] ({where.topology}): {where.chips} chips on {where.hosts} hosts; each chip "
        f"{chip.flops / 1e12:,.0f} TFLOP/s in bfloat16, {amount(chip.hbm_bytes)} of HBM at "
        f"{chip.hbm_bandwidth / 1e9:,.0f} GB/s, links of {chip.link_bandwidth / 1e9:,.0f} GB/s"
    )
    for verdict in verdicts:
        console.print(f"\n[bold cyan]{verdict.program.name}[/]  {verdict.program.what}", highlight=False)
        console.print(_table(verdict))
    if playing:
        console.print(
            f"\nself-play on a chip: {playing['moves_per_s']:,.0f} moves/s, {playing['evaluations_per_s']:,.0f} "
            f"evaluations/s: {playing['ratio']:.2f} of the bare network's {playing['bare_evaluations_per_s']:,.0f}; "
            f"{playing['bytes_per_simulation']:,.0f} bytes of HBM a simulation; trees {playing['depth']:.1f} deep",
            highlight=False,
        )
    if feeding:
        each = feeding["server_chip_evaluations_per_s"], feeding["core_moves_per_s"]
        console.print(
            f"\nthe learner asks for {feeding['moves_per_s']:,.0f} moves/s, {feeding['evaluations_per_s']:,.0f} "
            f"evaluations/s at most: {feeding['device_chips']:,.0f} more such chips with actors.inference=device, or "
            f"{feeding['server_chips']:,.0f} chips of inference servers ({each[0]:,.0f} evaluations/s each) and "
            f"{feeding['server_cores']:,.0f} cores like those of this machine ({each[1]:,.0f} moves/s each, without "
            "the network) with actors.inference=server",
            highlight=False,
        )


def _table(verdict: Verdict) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column()
    capacity = verdict.where.chip.device.hbm_bytes
    share = f"{amount(verdict.bytes_needed)} of {amount(capacity)} ({verdict.bytes_needed / capacity:.1%})"
    if verdict.cost is None:
        table.add_row("memory", f"[red]does not fit:[/] {share}. To reduce it: {verdict.program.advice}")
        return table
    table.add_row("memory", f"fits: {share}")
    cost, seconds = verdict.cost, verdict.seconds()
    moved = ", ".join(f"{amount(b)} {SPACES.get(s, str(s)).upper()}" for s, b in sorted(cost.traffic.items()))
    intensity = f", {cost.flops / cost.traffic[0]:,.0f} flops per byte of HBM" if cost.traffic[0] else ""
    table.add_row("cost", f"{cost.flops / 1e9:,.2f} GFLOP; memory traffic {moved}{intensity}")
    bound = max(seconds, key=lambda name: seconds[name])
    times = ", ".join(f"{name} {value * 1e3:,.3f} ms" for name, value in seconds.items())
    table.add_row("lower bound", f"{times}: bound by {bound}, at most {verdict.share_of_peak():.1%} of peak flops")
    if estimate := verdict.estimated_seconds():
        peak = f"{seconds['compute'] / estimate:.1%} of peak flops"
        table.add_row("estimate", f"{estimate * 1e3:,.3f} ms by the compiler, without communication: {peak}")
    for row in summary(cost):
        table.add_row(
            "collective",
            f"{row['kind']} among {row['group']}: {row['times']:,} times, {amount(row['bytes'])}, "
            f"each chip sends {amount(row['sent'])}",
        )
    table.add_row("host", f"{cost.host_transfers} transfers")
    if cost.unknown_loops:
        table.add_row(
            "note",
            f"{cost.unknown_loops} loops with an unknown trip count are counted once: cost and times are lower bounds",
        )
    return table


def amount(size: float) -> str:
    """A number of bytes with a binary unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:,.0f} {unit}" if unit == "B" else f"{size:,.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} TiB"


def show_scaling(console: Console, name: str, report: dict[str, Any]) -> None:
    """Prints the report of `podzero compile --scaling`, one line for each slice."""
    console.print(
        f"[bold]{name}[/]: the learner's step at {report['per_chip']:,} samples a chip, "
        f"{amount(report['parameter_bytes'])} of parameters, nothing overlapped",
        highlight=False,
    )
    table = Table(box=None, pad_edge=False, header_style="bold")
    for header in ("slice", "computing", "links", "hops", "step", "efficiency", "collectives"):
        table.add_column(header, justify="left" if header in ("slice", "collectives") else "right")
    for row in report["slices"]:
        step = row["step"]
        table.add_row(
            row["slice"],
            *(f"{seconds * 1e6:,.1f} us" for seconds in (*step.values(), sum(step.values()))),
            f"{row['efficiency']:.3f}",
            "; ".join(f"{c['times']:g} {c['kind']}, {amount(c['bytes'])}" for c in row["collectives"]) or "none",
        )
    console.print(table)
