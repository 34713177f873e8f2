"""Where and how self-play evaluates the network: sections int8 and server, and the checks of each placement."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import pydantic
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from podzero.config.environments import JaxGameConfig
from podzero.config.networks import ResNetConfig
from podzero.config.section import Section

if TYPE_CHECKING:
    from podzero.config.experiment import Experiment


class Int8Config(Section):
    """Quantized evaluation (`actors.inference=int8`, or `on_tpu`): its cache, and how far it may differ from evaluation
    in float32, or with `on_tpu` in the network's own dtype. The limits are means over positions held out from
    calibration.

    Each version of the parameters is compared; one that exceeds a limit is evaluated without int8.
    """

    on_tpu: bool = False
    """With `actors.inference=server` or `device`: computes the tower of `resnet` in int8 on TPUs.
    Only wide towers gain by it (docs/compile.md)."""
    positions: Annotated[int, Field(ge=4)] = 512
    """Positions for calibration (three quarters) and comparison (one quarter): from random play at first, then those
    that the actor's searches or the server evaluated last, or with `actors.inference=device` those played last. With
    `actors.inference=int8` the number is rounded up to a multiple of `actors.games`."""
    max_policy_kl: PositiveFloat = 0.02
    """The largest mean KL divergence between the two policies over the legal actions, in nats."""
    max_value_error: PositiveFloat = 0.05
    """The largest mean absolute difference between the two values."""
    cache_mib: NonNegativeFloat = 16.0
    """With `actors.inference=int8`: an actor's cache of evaluations by the current version, in MiB; 0 for none."""


class ServerConfig(Section):
    """Inference servers (`actors.inference=server`): processes that evaluate the network for actors."""

    count: PositiveInt = 1
    """Server processes."""
    beside_learner: bool = False
    """Whether each learner process serves on its devices, in turns with training; there are then no other servers."""
    cpus: PositiveFloat = 1.0
    """CPUs that Ray reserves for each server."""
    resources: dict[str, PositiveFloat] = Field(default_factory=dict)
    """Ray resources that each server reserves and runs on, for example `{GPU: 1}` or `{TPU: 4}`. Without, it runs on
    the CPU."""
    groups: PositiveInt = 2
    """Groups into which each actor divides its games: while a server evaluates the positions of one group, the actor
    searches another."""
    batch_sizes: tuple[PositiveInt, ...] = (16, 32, 64, 128, 256, 512, 1024)
    """Batch sizes to compile, ascending. A server waits for a full batch while its devices are busy."""
    deadline_ms: NonNegativeFloat = 1.0
    """Milliseconds that a position waits for others while the devices are idle."""
    queue_mib: PositiveFloat = 1024.0
    """Memory of a server for requests and responses, in MiB. It refuses actors whose requests might need more."""
    timeout_s: PositiveFloat = 20.0
    """Seconds without a response after which an actor switches to another server and continues its games there."""
    give_up_s: PositiveFloat | None = None
    """Seconds without any server after which an actor fails. By default actors wait without a limit."""
    hang_s: PositiveFloat = 60.0
    """Seconds that a batch may take on the devices, or a server may be silent, before the server is replaced."""
    cache_mib: NonNegativeFloat = 16.0
    """Cache of evaluations of each group of games, in MiB, so that few positions are sent twice; 0 for none."""

    @pydantic.field_validator("batch_sizes")
    @classmethod
    def _sizes_ascend(cls, sizes: tuple[int, ...]) -> tuple[int, ...]:
        if not sizes or list(sizes) != sorted(set(sizes)):
            raise ValueError(f"sizes must ascend, as {sorted(set(sizes)) or [64, 256]}, not {list(sizes)}")
        return sizes


def check_placement(experiment: Experiment) -> None:
    """Checks that the environment and the network suit `actors.inference`.

    Raises:
      ValueError: they do not; the message names a placement that works.
    """
    inference, env, network = experiment.actors.inference, experiment.env, experiment.network
    if inference == "device" and not isinstance(env, JaxGameConfig):
        raise ValueError(
            f"actors.inference = device plays games in JAX, and {env.title} runs on the host; set actors.inference="
            f"{'local' if experiment.learns_model else 'server or local'}"
        )
    where, games = experiment.cluster.tpu, experiment.actors.games
    if experiment.actors.beside_learner and where is not None and games % where.chips_of_host:
        raise ValueError(
            f"actors.games {games} cannot be divided among the {where.chips_of_host} chips of a host of "
            f"{where.short_name}, which play; set it to {(games // where.chips_of_host + 1) * where.chips_of_host}"
        )
    if inference == "int8" and not isinstance(network, ResNetConfig):
        raise ValueError(
            f"actors.inference = int8 supports the network resnet, not '{network.name}'; "
            "set actors.inference=local or network.name=resnet"
        )
    if experiment.int8.on_tpu and inference not in ("server", "device"):
        raise ValueError(
            f"int8.on_tpu is for evaluation on TPUs, and actors.inference = {inference} evaluates on CPUs; set "
            "actors.inference=server or device, or actors.inference=int8 for int8 on CPUs"
        )
    if experiment.int8.on_tpu and not isinstance(network, ResNetConfig):
        raise ValueError(
            f"int8.on_tpu supports the network resnet, not '{network.name}'; "
            "set int8.on_tpu=false or network.name=resnet"
        )
    if inference == "server" and experiment.learns_model:
        raise ValueError(
            f"actors.inference = server evaluates positions, and '{network.name}' learns a model; "
            "set actors.inference=local"
        )
    if inference == "server" and experiment.actors.games % experiment.server.groups:
        raise ValueError(
            f"actors.games {experiment.actors.games} cannot be divided into server.groups = "
            f"{experiment.server.groups} equal groups"
        )
