"""Several hosts that train as one: they form one mesh, make sure that they mean the same, and do the same in one order.

Programs that span hosts must be started by all of them in the same order. Whether to take a step, save or stop depends
on what each host alone knows (whether replay gave it a batch, whether somebody asked for a checkpoint), so host 0 keeps
a log of orders in the coordination service of `jax.distributed`, and all follow it. A step is ordered only when every
host has its part of the batch, so that nobody waits inside a program for a host that waits for replay. The service
lives on the hosts' CPUs: the log runs ahead of the devices and leaves no gap there.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol

import jax

from podzero.config import Experiment
from podzero.errors import ConfigError
from podzero.workdir import differences

_KEEP = 64
"""Orders that stay in the log: nobody is further behind than the few that need no batch."""
_LOOK_S = 0.001


class HostLost(RuntimeError):
    """A host that trains with this one is gone or silent; the message says which, and for how long."""


class Order(NamedTuple):
    """What all hosts do next."""

    what: Literal["step", "save", "stop"]
    folder: str = ""
    """Where to save."""


class Agreement(Protocol):
    """How hosts come to do the same."""

    def next(self, wish: Order | None, wait_s: float) -> Order | None:
        """The next order of all hosts, or None when there is none within `wait_s`.

        Args:
          wish: what this host would do: a step if it holds a batch, else None; host 0 may also wish to save or to stop.
          wait_s: how long to wait for an order.

        Raises:
          HostLost: another host is gone, or has kept this one waiting for too long.
        """
        ...


class Alone:
    """One host: what it wishes is done. An `Agreement`."""

    def next(self, wish: Order | None, wait_s: float) -> Order | None:
        """The wish."""
        del wait_s
        return wish


class Membership(NamedTuple):
    """The place of this process among the hosts of a learner."""

    rank: int
    hosts: int
    coordinator: str
    """`host:port` at which host 0 serves the others."""


def join(membership: Membership, experiment: Experiment) -> Agreement:
    """Makes this process one host of a learner; must run before JAX is used for anything else.

    Raises:
      HostLost: not all hosts came within `cluster.join_minutes`, or host 0 cannot listen at its address.
      ConfigError: host 0 runs another experiment; names what differs.
    """
    if membership.hosts == 1:
        return Alone()
    jax.config.update("jax_cpu_collectives_implementation", "gloo")  # type: ignore[no-untyped-call]
    try:
        jax.distributed.initialize(
            membership.coordinator,
            membership.hosts,
            membership.rank,
            coordinator_bind_address=membership.coordinator,
            initialization_timeout=round(60 * experiment.cluster.join_minutes),
            heartbeat_timeout_seconds=max(10, round(experiment.cluster.host_timeout_s)),
        )
    except jax.errors.JaxRuntimeError as error:
        raise HostLost(
            f"learner host {membership.rank} did not join the others: all {membership.hosts} hosts must meet "
            f"at {membership.coordinator} within {experiment.cluster.join_minutes:g} minutes "
            f"(cluster.join_minutes): {error}"
        ) from None
    team = Team(membership, _client(), experiment.replay.timeout_s + experiment.cluster.host_timeout_s)
    team.compare(experiment)
    return team


class Team:
    """The log of orders, kept by host 0 and followed by all. An `Agreement`.

    Args:
      membership: who this host is.
      client: of the coordination service.
      patience_s: how long host 0 waits for the others' batches, and they for its orders, before that is an error:
        longer than a host may wait for replay.
    """

    def __init__(self, membership: Membership, client: Any, patience_s: float) -> None:
        self._rank, self._hosts, _ = membership
        self._client = client
        self._patience_s = patience_s
        self._orders = 0
        self._steps = 0
        self._told = -1
        self._since = time.monotonic()

    def compare(self, experiment: Experiment) -> None:
        """Makes sure that this host runs the experiment of host 0.

        Raises:
          ConfigError: it does not; names what differs.
          HostLost: host 0 does not say what it runs.
        """
        if self._rank == 0:
            self._tell(lambda: self._client.key_value_set("podzero/experiment", experiment.model_dump_json()))
            return
        text = self._read("podzero/experiment", self._patience_s)
        if text is None:
            raise HostLost(f"host 0 did not tell host {self._rank} its experiment within {self._patience_s:g} s")
        listed = differences(Experiment.model_validate(json.loads(text)), experiment)
        if listed:
            lines = "\n".join(f"  {line}" for line in listed)
            raise ConfigError(
                f"learner host {self._rank} was given another experiment than host 0:\n{lines}\n"
                "start all hosts with the same config and the same version of podzero"
            )

    def next(self, wish: Order | None, wait_s: float) -> Order | None:
        """The next order of all hosts, or None when there is none within `wait_s`."""
        order = self._lead(wish, wait_s) if self._rank == 0 else self._follow(wish, wait_s)
        if order is not None:
            self._orders += 1
            self._steps += order.what == "step"
            self._since = time.monotonic()
        return order

    def _lead(self, wish: Order | None, wait_s: float) -> Order | None:
        """Puts the wish on the log; a step only once all hosts have their batches."""
        if wish is None:
            self._since = time.monotonic()  # it is this host that keeps the others waiting
            return None
        if wish.what == "step" and not self._all_ready(wait_s):
            return None
        self._tell(lambda: self._client.key_value_set(_order(self._orders), json.dumps(wish)))
        if self._orders >= _KEEP:
            self._tell(lambda: self._client.key_value_delete(_order(self._orders - _KEEP)))
        return wish

    def _follow(self, wish: Order | None, wait_s: float) -> Order | None:
        """Says that this host has its batch, and reads the log."""
        if wish is not None and self._told < self._steps:
            key, steps = f"podzero/ready/{self._rank}", str(self._steps)
            self._tell(lambda: self._client.key_value_set(key, steps, allow_overwrite=True))
            self._told = self._steps
        text = self._read(_order(self._orders), wait_s)
        if text is not None:
            return Order(*json.loads(text))
        self._check_patience("the orders of host 0")
        return None

    def _all_ready(self, wait_s: float) -> bool:
        """Whether every other host has its batch for the coming step within `wait_s`."""
        until = time.monotonic() + wait_s
        while late := self._late():
            if time.monotonic() > until:
                self._check_patience(f"the batches of host(s) {', '.join(map(str, late))}")
                return False
            time.sleep(_LOOK_S)
        return True

    def _late(self) -> list[int]:
        """The hosts that have no batch for the coming step yet."""
        told = self._ask(lambda: self._client.key_value_dir_get("podzero/ready/"))
        ready = {int(key.rpartition("/")[2]) for key, steps in told or () if int(steps) >= self._steps}
        return [rank for rank in range(1, self._hosts) if rank not in ready]

    def _read(self, key: str, wait_s: float) -> str | None:
        value: str | None = self._ask(lambda: self._client.blocking_key_value_get(key, max(1, round(1000 * wait_s))))
        return value

    def _tell(self, news: Callable[[], None]) -> None:
        """Has the service note something."""
        try:
            news()
        except jax.errors.JaxRuntimeError as error:
            raise self._cut_off(error) from None

    def _ask(self, question: Callable[[], Any]) -> Any:
        """The service's answer, or None when it has none in time."""
        try:
            return question()
        except jax.errors.JaxRuntimeError as error:
            if "DEADLINE_EXCEEDED" in str(error):
                return None
            raise self._cut_off(error) from None

    def _cut_off(self, error: Exception) -> HostLost:
        return HostLost(f"host {self._rank} cannot reach host 0, which coordinates the learner: {error}")

    def _check_patience(self, what: str) -> None:
        waited = time.monotonic() - self._since
        if waited > self._patience_s:
            raise HostLost(f"learner host {self._rank} has waited {waited:.0f} s for {what}")


def _order(number: int) -> str:
    return f"podzero/order/{number}"


def _client() -> Any:
    """The client of the coordination service that `jax.distributed` started; there is no public door to it."""
    from jax._src import distributed

    return distributed.global_state.client
