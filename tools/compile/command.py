"""The work of `podzero compile`: compiles the programs for one slice, or the learner for several, and shows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from rich.console import Console
from rich.filesize import pick_unit_and_suffix
from rich.table import Table

from podzero.config import Experiment
from podzero.core.chips import Slice, find_slice
from podzero.tools.compile.compiled import (
    BETWEEN,
    SPACES,
    CompiledProgram,
    compile_program,
    feeding_needs,
    play_rates,
    runs_without_estimate,
    scaling_of,
    summary,
)
from podzero.tools.compile.programs import GAME_LENGTH, NAMES, devices_of, of_one_device, programs_of


class CompiledSlice(NamedTuple):
    """The programs of an experiment, compiled for one slice."""

    name: str
    where: Slice
    slices: int
    """How many such slices train together."""
    programs: list[CompiledProgram]
    rates: dict[str, Any]
    """Those of self-play on a chip, and under `feeding` what the learner needs to be fed; as far as the programs that
    they follow from have estimates."""

    @property
    def fits(self) -> bool:
        """Whether all programs fit into the memory of a chip."""
        return all(compiled.fits for compiled in self.programs)

    def to_dict(self) -> dict[str, Any]:
        """The output of `--json`."""
        where = self.where
        return {
            "config": self.name, "topology": where.topology, "slices": self.slices,
            "chips": self.slices * where.chips, "hosts": self.slices * where.hosts,
            "programs": [compiled.to_dict() for compiled in self.programs],
        } | self.rates  # fmt: skip

    def show(self, console: Console) -> None:
        """Prints the slice, a table for each program, the rates of self-play on a chip, and what feeds the learner."""
        where, chip, word = self.where, self.where.chip, self.where.chip.device_word
        many = "" if self.slices == 1 else f"{self.slices} x "
        cores = f" ({where.devices} cores, each a JAX device)" if chip.devices > 1 else ""
        console.print(
            f"[bold]{many}{where.short_name}[/] ({where.topology}): {where.chips} chips{cores} on {where.hosts} hosts; "
            f"each chip {chip.flops / 1e12:,.0f} TFLOP/s in bfloat16, {amount(chip.hbm_bytes)} of HBM at "
            f"{chip.hbm_bandwidth / 1e9:,.0f} GB/s, links of {chip.link_bandwidth / 1e9:,.0f} GB/s"
        )
        for compiled in self.programs:
            console.print(f"\n[bold cyan]{compiled.program.name}[/]  {compiled.program.what}", highlight=False)
            console.print(_table(compiled, self.slices))
        if playing := self.rates:
            console.print(
                f"\nself-play on a {word}: {playing['moves_per_s']:,.0f} moves/s, {playing['evaluations_per_s']:,.0f} "
                f"evaluations/s: {playing['ratio']:.2f} of the bare network's {playing['bare_evaluations_per_s']:,.0f}"
                f"; {playing['bytes_per_simulation']:,.0f} bytes of HBM a simulation; trees {playing['depth']:.1f} "
                f"deep; games of {playing['plies']:g} plies, {GAME_LENGTH:g} of the longest\n"
                f"samples to each host: {amount(playing['bytes_per_move'])} a move, "
                f"{amount(playing['host_bytes_per_s'])}/s while its {word}s do nothing but play",
                highlight=False,
            )
        if feeding := self.rates.get("feeding"):
            each = feeding["server_chip_evaluations_per_s"], feeding["core_moves_per_s"]
            console.print(
                f"\nthe learner needs {feeding['moves_per_s']:,.0f} moves/s, {feeding['evaluations_per_s']:,.0f} "
                f"evaluations/s at most: {feeding['device_chips']:,.0f} more such {word}s with "
                f"actors.inference=device, or {feeding['server_chips']:,.0f} {word}s of inference servers "
                f"({each[0]:,.0f} evaluations/s each) and {feeding['server_cores']:,.0f} cores like those of this "
                f"machine ({each[1]:,.0f} moves/s each, without the network) with actors.inference=server",
                highlight=False,
            )


class ComparedSlices(NamedTuple):
    """The learner's step on several slices at a fixed batch per chip."""

    name: str
    scaling: dict[str, Any]
    fits: bool = True
    """Else `compile_for_slices` has raised an error."""

    def to_dict(self) -> dict[str, Any]:
        """The output of `--json`."""
        return {"config": self.name} | self.scaling

    def show(self, console: Console) -> None:
        """Prints a line for each slice."""
        word = find_slice(self.scaling["slices"][0]["slice"]).chip.device_word
        console.print(
            f"[bold]{self.name}[/]: the learner's step at {self.scaling['per_chip']:,} samples a {word}, "
            f"{amount(self.scaling['parameter_bytes'])} of parameters, nothing overlapped",
            highlight=False,
        )
        table = Table(box=None, pad_edge=False, header_style="bold")
        for header in ("slice", "computing", "links", "hops", "step", "efficiency", "collectives"):
            table.add_column(header, justify="left" if header in ("slice", "collectives") else "right")
        for row in self.scaling["slices"]:
            step = row["step"]
            table.add_row(
                row["slice"],
                *(f"{seconds * 1e6:,.1f} us" for seconds in (*step.values(), sum(step.values()))),
                f"{row['efficiency']:.3f}",
                "; ".join(f"{c['times']:g} {c['kind']}, {amount(c['bytes'])}" for c in row["collectives"]) or "none",
            )
        console.print(table)


def compile_for_slice(experiment: Experiment, where: str, program: str | None, depth: float | None) -> CompiledSlice:
    """Compiles one program, or all if `program` is None, for a slice.

    With `device`, `evaluation` is compiled as well, to compare the two, and `take`, which follows it. `depth` is the
    mean depth of the searches in `device`; None for that of `programs.DEPTH`.
    """
    found = find_slice(where)
    names = NAMES if program is None else ("evaluation", "device", "take") if program == "device" else (program,)
    experiment = of_one_device(experiment, found)
    devices = devices_of(found, experiment.cluster.slices)
    programs = [compile_program(program, found) for program in programs_of(experiment, devices, names, depth)]
    estimated = {compiled.program.name: compiled for compiled in programs if compiled.has_estimate}
    rates: dict[str, Any] = {}
    if {"device", "take", "evaluation"} <= estimated.keys():
        rates = play_rates(estimated["device"], estimated["take"], estimated["evaluation"])
        if {"learner", "server"} <= estimated.keys():
            rates["feeding"] = feeding_needs(experiment, estimated["learner"], estimated["server"], rates)
    return CompiledSlice(experiment.name, found, experiment.cluster.slices, programs, rates)


def compile_for_slices(experiment: Experiment, names: Sequence[str], per_chip: int | None) -> ComparedSlices:
    """Compiles the learner for several slices with `per_chip` samples per step and device, and compares them with the
    first; None takes what the experiment's batch gives on the first slice.
    """
    slices, many = [find_slice(name) for name in names], experiment.cluster.slices
    each = per_chip or max(1, experiment.learner.batch_size // (many * slices[0].devices))
    programs = []
    for where in slices:
        grown = experiment.changed(learner={"batch_size": each * many * where.devices})  # unchecked: only for compiling
        (learner,) = programs_of(grown, devices_of(where, many), ("learner",))
        programs.append(compile_program(learner, where))
    return ComparedSlices(experiment.name, scaling_of(programs, each))


def _table(compiled: CompiledProgram, slices: int) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column()
    capacity = compiled.where.chip.device.hbm_bytes
    share = f"{amount(compiled.bytes_needed)} of {amount(capacity)} ({compiled.bytes_needed / capacity:.1%})"
    if compiled.cost is None:
        table.add_row("memory", f"[red]does not fit:[/] {share}. To reduce it: {compiled.program.advice}")
        return table
    table.add_row("memory", f"fits: {share}")
    cost, seconds = compiled.cost, compiled.seconds()
    moved = ", ".join(f"{amount(b)} {SPACES.get(s, str(s)).upper()}" for s, b in sorted(cost.traffic.items()))
    intensity = f", {cost.flops / cost.traffic[0]:,.0f} flops per byte of HBM" if cost.traffic[0] else ""
    table.add_row("cost", f"{cost.flops / 1e9:,.2f} GFLOP; memory traffic {moved}{intensity}")
    bound = max(seconds, key=lambda name: seconds[name])
    times = ", ".join(f"{name} {value * 1e3:,.3f} ms" for name, value in seconds.items())
    table.add_row("lower bound", f"{times}: bound by {bound}, at most {compiled.share_of_peak():.1%} of peak flops")
    if not compiled.has_estimate:
        table.add_row("estimate", "unknown")
    elif estimate := compiled.estimated_seconds():
        peak = f"{seconds['compute'] / estimate:.1%} of peak flops"
        table.add_row("estimate", f"{estimate * 1e3:,.3f} ms by the compiler, without communication: {peak}")
    if runs := runs_without_estimate(cost):
        listed = ", ".join(f"{kind} {times:,}" for kind, times in runs.items())
        table.add_row("", f"{sum(runs.values()):,} instructions without an estimate: {listed}")
    for row in summary(cost):
        if row["kind"].endswith(BETWEEN):
            steps, each = compiled.program.trip_count, compiled.where.chip.device_word
            sent = row["sent"] / steps
            table.add_row(
                "network",
                f"{row['kind']}, among {row['group']}: {row['times'] / steps:g} times a step, each {each} sends "
                f"{amount(sent)}, each slice {amount(sent * compiled.where.devices)}",
            )
            continue
        table.add_row(
            "collective",
            f"{row['kind']} among {row['group']}: {row['times']:,} times, {amount(row['bytes'])}, "
            f"each {compiled.where.chip.device_word} sends {amount(row['sent'])}",
        )
    table.add_row("host", _transfers(compiled, slices))
    if cost.unknown_loops:
        table.add_row(
            "note",
            f"{cost.unknown_loops} loops with an unknown trip count are counted once: cost and times are lower bounds",
        )
    return table


def _transfers(compiled: CompiledProgram, slices: int) -> str:
    """What crosses between chips and hosts before, during and after an execution."""
    program = compiled.program
    # The batch of the learner is that of all hosts; other programs run on one device.
    steps = program.trip_count * (slices * compiled.where.hosts if program.name == "learner" else 1)
    sent = [f"{amount(program.from_hosts / steps)} in for each step"] if program.from_hosts else []
    fetched = [f"{amount(program.to_hosts / steps)} out"] if program.to_hosts else []
    return ", ".join([f"{compiled.cost.host_transfers if compiled.cost else 0} transfers", *sent, *fetched])


def amount(size: float) -> str:
    """A number of bytes with a binary unit."""
    unit, suffix = pick_unit_and_suffix(int(size), ["B", "KiB", "MiB", "GiB", "TiB"], 1024)
    return f"{size / unit:,.{int(unit > 1)}f} {suffix}"
