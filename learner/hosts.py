"""Multi-host training: hosts join one mesh, check that they run the same experiment, and execute the same commands.

learner/README.md says why host 0 writes a log of commands. It is in the coordination service of `jax.distributed`,
which runs on CPUs: the log is ahead of the devices, which do not idle. A host may wait for replay without a limit.
Hosts that wait give signs of life, to distinguish them from lost ones.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax

from podzero.config import Experiment
from podzero.core.errors import TRY_AGAIN, ConfigError, PodzeroError
from podzero.core.waiting import Wait
from podzero.files.workdir import differences

log = logging.getLogger(__name__)

HOST_TIMEOUT_S = 60.0
"""Time without a response from a learner host after which the others give up; JAX takes at least ten seconds."""
TOLD_S = 660.0
"""Longest wait for what host 0 tells the others: it may be compiling before."""
_LOG_LENGTH = 64
"""Commands that stay in the log. No host is further behind: a step waits for all hosts, and other commands are rare."""
_POLL_S = 0.001


class HostLost(PodzeroError, RuntimeError):
    """Another host of the learner is gone or does not respond; the message names it."""

    exit_code = TRY_AGAIN


class Command(NamedTuple):
    """What all hosts do next."""

    action: Literal["step", "save", "stop"]
    folder: str = ""
    """The folder to save to."""
    progress: float = 0.0
    """The run's progress, in [0, 1], for a step."""


def join(rank: int, hosts: int, coordinator: str, experiment: Experiment) -> HostSync | None:
    """Makes this process one of several hosts of a learner. Call it before anything else that uses JAX.

    `coordinator` is `host:port` of the coordination service, which host 0 runs.

    Raises:
      HostLost: not all hosts joined within `cluster.join_minutes`, or host 0 cannot listen at its address.
      ConfigError: this host has another experiment than host 0, and the message lists the differences; or another
        rank than JAX gives it.
    """
    if hosts == 1:
        return None
    try:
        jax.distributed.initialize(
            coordinator,
            hosts,
            rank,
            coordinator_bind_address=coordinator,
            initialization_timeout=round(60 * experiment.cluster.join_minutes),
            heartbeat_timeout_seconds=round(HOST_TIMEOUT_S),
        )
    except jax.errors.JaxRuntimeError as error:
        raise HostLost(
            f"learner host {rank} did not join the others: all {hosts} hosts must meet at {coordinator} within "
            f"{experiment.cluster.join_minutes:g} minutes (cluster.join_minutes): {error}"
        ) from None
    # JAX has no public API for the client of the coordination service.
    from jax._src import distributed

    sync = HostSync(rank, hosts, distributed.global_state.client, TOLD_S)
    sync.compare(experiment)
    # On TPUs JAX takes its number of a process from the slice, not from the rank above. Batches, checkpoints and the
    # order of devices go by it, shards of replay and the log of commands by the rank.
    if (index := jax.process_index()) != rank:
        raise ConfigError(
            f"learner host {rank} is process {index} to JAX (jax.process_index()): learner hosts must be "
            "numbered like the workers of their slice; check TPU_WORKER_ID and the node label ray.io/tpu-worker-id of "
            "this machine, and restart Ray there"
        )
    return sync


class HostSync:
    """Makes all hosts of a learner execute the same commands in the same order: host 0 writes a log of them.

    The wait for another host has no limit: the driver judges which of them hangs.
    """

    def __init__(self, rank: int, hosts: int, client: Any, timeout_s: float) -> None:
        self._rank, self._hosts = rank, hosts
        self._client, self._timeout_s = client, timeout_s
        self._commands = self._steps = 0
        self._ready_step = -1
        """The last step for which this host announced its batch."""
        self._wait: Wait | None = None
        """The wait for other hosts; None until this host trains, since hosts start at different speeds."""

    def compare(self, experiment: Experiment) -> None:
        """Checks that this host has the experiment of host 0."""
        text = self.told("experiment", experiment.model_dump_json())
        listed = differences(Experiment.model_validate(json.loads(text)), experiment)
        if listed:
            lines = "\n".join(f"  {line}" for line in listed)
            raise ConfigError(
                f"learner host {self._rank} was given another experiment than host 0:\n{lines}\n"
                "start all hosts with the same config and the same version of podzero"
            )

    def told(self, name: str, text: str) -> str:
        """Host 0's `text` on every host; call it once for each `name`."""
        key = f"podzero/{name}"
        if self._rank == 0:
            self._ask(lambda: self._client.key_value_set(key, text))
            return text
        found = self._get(key, self._timeout_s)
        if found is None:
            raise HostLost(f"learner host {self._rank} has waited {self._timeout_s:g} s for host 0 to tell its {name}")
        return found

    def next(self, proposal: Command | None, wait_s: float) -> Command | None:
        """The next command for all hosts, or None if there is none within `wait_s`.

        `proposal` is a step if this host has a batch, else None; host 0 may also propose to save or to stop.

        Raises:
          HostLost: another host is gone.
        """
        if self._wait is None:
            self._wait = Wait()
        command = self._lead(proposal, wait_s) if self._rank == 0 else self._follow(proposal, wait_s)
        if command is not None:
            self._commands += 1
            self._steps += command.action == "step"
            self._wait = Wait()
        return command

    def _lead(self, proposal: Command | None, wait_s: float) -> Command | None:
        """Appends the proposal to the log; a step only if all hosts have their batches."""
        if proposal is None:
            # The others wait for this host, not this host for them.
            self._wait = Wait()
            return None
        # Commanded earlier, a step would let hosts block inside a program until replay has served the last of them.
        if proposal.action == "step" and not self._all_ready(wait_s):
            return None
        self._ask(lambda: self._client.key_value_set(_key(self._commands), json.dumps(proposal)))
        if self._commands >= _LOG_LENGTH:
            self._ask(lambda: self._client.key_value_delete(_key(self._commands - _LOG_LENGTH)))
        return proposal

    def _follow(self, proposal: Command | None, wait_s: float) -> Command | None:
        """Announces that this host has its batch, and reads the next command."""
        if proposal is not None and self._ready_step < self._steps:
            key, steps = f"podzero/ready/{self._rank}", str(self._steps)
            self._ask(lambda: self._client.key_value_set(key, steps, allow_overwrite=True))
            self._ready_step = self._steps
        text = self._get(_key(self._commands), wait_s)
        if text is not None:
            return Command(*json.loads(text))
        self._say("the commands of host 0")
        return None

    def _all_ready(self, wait_s: float) -> bool:
        """Whether every other host has its batch for the next step within `wait_s`."""
        until = time.monotonic() + wait_s
        while late := self._late():
            if time.monotonic() > until:
                self._say(f"the batches of host(s) {', '.join(map(str, late))}")
                return False
            time.sleep(_POLL_S)
        return True

    def _late(self) -> list[int]:
        """The hosts that have no batch for the next step yet."""
        announced = self._ask(lambda: self._client.key_value_dir_get("podzero/ready/"), may_be_late=True)
        ready = {int(key.rpartition("/")[2]) for key, steps in announced or () if int(steps) >= self._steps}
        return [rank for rank in range(1, self._hosts) if rank not in ready]

    def _get(self, key: str, wait_s: float) -> str | None:
        milliseconds = max(1, round(1000 * wait_s))
        value: str | None = self._ask(lambda: self._client.blocking_key_value_get(key, milliseconds), may_be_late=True)
        return value

    def _ask(self, call: Callable[[], Any], may_be_late: bool = False) -> Any:
        """The answer of the coordination service; None if it takes too long and may."""
        try:
            return call()
        except jax.errors.JaxRuntimeError as error:
            if may_be_late and "DEADLINE_EXCEEDED" in str(error):
                return None
            raise HostLost(
                f"learner host {self._rank} cannot reach host 0, which runs the coordination service: {error}"
            ) from None

    def _say(self, awaited: str) -> None:
        """Logs a long wait."""
        if self._wait is not None and self._wait.message_due():
            log.warning("learner host %d has waited %s for %s", self._rank, self._wait, awaited)


def _key(index: int) -> str:
    return f"podzero/command/{index}"
