"""The rules across the sections of an experiment; those within a section stand in its class.

Each rule is a function of an experiment. A broken one raises a `ValueError`, whose message names settings that work.
"""

from __future__ import annotations

import math

from podzero.config.acting import ActorsConfig, DataConfig
from podzero.config.environments import JaxGameConfig, JaxLibraryConfig, OwnGameConfig, is_learned
from podzero.config.experiment import Experiment
from podzero.config.networks import OwnNetworkConfig, ResNetConfig
from podzero.config.training import MuZeroConfig
from podzero.core.chips import useless_int8

_SELF_PLAY_OF_GAMES = (
    "opponents",
    "opening_fraction",
    "opening_plies",
    "root_value_weight",
    "td_lambda",
    "resign_value",
    "resign_fraction",
)
"""Settings of section `actors` that MuZero's actors do not have."""


def check(experiment: Experiment) -> None:
    """Applies all rules, in this order, up to the first that is broken."""
    check_network(experiment)
    check_self_play(experiment)
    check_tower(experiment)
    check_placement(experiment)
    check_simulator(experiment)
    check_replay(experiment)
    check_hosts(experiment)
    # Both divide the batch among the hosts, which now is known to work.
    check_reanalyse(experiment)
    check_data(experiment)
    check_budget(experiment)


def check_network(experiment: Experiment) -> None:
    """The network and its training suit the environment: a model is learned where the rules are not known."""
    env, network = experiment.env, experiment.network
    in_jax = isinstance(env, JaxLibraryConfig | OwnGameConfig)
    if is_learned(env):
        if not experiment.learns_model:
            own = "network.learns_model=true if it does, "
            known = "env.model=rules" if in_jax else "env.name to gymnasium_simulator if the environment can be copied"
            raise ValueError(
                f"{env.title} needs a network that learns a model, and '{network.name}' does not; set "
                f"{own if isinstance(network, OwnNetworkConfig) else ''}network.name to muzero_mlp or "
                f"muzero_resnet, or {known}"
            )
        if experiment.evaluation.opponents:
            raise ValueError(f"evaluation.opponents: {env.title} has one player and no opponents; remove them")
    elif experiment.learns_model:
        raise ValueError(
            f"'{network.name}' learns a model, but the rules of '{env.name}' are known; set network.name "
            f"to resnet, transformer or mlp{', or env.model=learned' if in_jax else ''}"
        )
    if not experiment.learns_model:
        if experiment.muzero != MuZeroConfig():
            raise ValueError(f"section muzero is for networks that learn a model, not '{network.name}'; remove it")
        return
    if experiment.teacher is not None:
        raise ValueError(
            f"teacher: '{network.name}' also predicts positions that no observation shows, for which a "
            "teacher's network has no policy; a teacher is only for networks of games with known rules: remove it"
        )
    if experiment.replay.samples_per_item != 1:
        raise ValueError(
            f"replay.samples_per_item {experiment.replay.samples_per_item}: an episode yields any number of windows, "
            "so each item must hold one window; set replay.samples_per_item=1"
        )
    if experiment.search.q_scale == "bounds":
        raise ValueError(f"search.q_scale: values of {env.title} have no known bounds; set it to tree or node")


def check_self_play(experiment: Experiment) -> None:
    """Settings of self-play that only games have are left alone where a model is learned."""
    for name in _SELF_PLAY_OF_GAMES if experiment.learns_model else ():
        if getattr(experiment.actors, name) != ActorsConfig.model_fields[name].default:
            raise ValueError(
                f"actors.{name} is only for self-play of games, and '{experiment.network.name}' learns from "
                f"{experiment.env.title}; remove it"
            )


def check_placement(experiment: Experiment) -> None:
    """The environment and the network suit `actors.inference`."""
    inference, env, network = experiment.actors.inference, experiment.env, experiment.network
    if inference == "device" and not isinstance(env, JaxGameConfig):
        raise ValueError(
            f"actors.inference = device plays games in JAX, and {env.title} runs on the host; set actors.inference="
            f"{'local' if experiment.learns_model else 'server or local'}"
        )
    where, games = experiment.cluster.tpu, experiment.actors.games
    if experiment.actors.beside_learner and where is not None:
        _check_multiple("actors.games", games, where.chips_of_host, f"chips of a {where.short_name} host, which play")
    if experiment.int8.on_tpu and inference not in ("server", "device"):
        raise ValueError(
            f"int8.on_tpu is for evaluation on TPUs, and actors.inference = {inference} evaluates on CPUs; set "
            "actors.inference=server or device, or actors.inference=int8 for int8 on CPUs"
        )
    if experiment.int8.on_tpu and experiment.uses_learner_devices and where is not None:
        assert isinstance(network, ResNetConfig)
        if (useless := useless_int8(where.chip, network.channels)) is not None:
            raise ValueError(useless)
    if inference == "server" and experiment.learns_model:
        raise ValueError(
            f"actors.inference = server evaluates positions, and '{network.name}' learns a model; "
            "set actors.inference=local"
        )
    if inference == "server":
        _check_multiple("actors.games", games, experiment.server.groups, "groups of equal size (server.groups)")


def _check_multiple(name: str, value: int, parts: int, what: str) -> None:
    """The setting `name` can be divided equally among so many `parts`, which are `what`."""
    if value % parts:
        wanted = (value // parts + 1) * parts
        raise ValueError(f"{name} {value} is not a multiple of the {parts} {what}; set {name}={wanted}")


def check_simulator(experiment: Experiment) -> None:
    """A simulator in JAX whose model is learned is stepped on devices."""
    env, inference = experiment.env, experiment.actors.inference
    if not experiment.learns_model or not isinstance(env, JaxGameConfig):
        return
    if inference != "device":
        raise ValueError(
            f"actors.inference = {inference}: the devices that search step {env.title} too; set actors.inference=device"
        )
    if experiment.reanalyse.share or experiment.data.records is not None:
        what = "reanalyse.share: stored" if experiment.reanalyse.share else "data.records: recorded"
        raise ValueError(f"{what} episodes can be those of gymnasium, and not those of {env.title}; remove it")


def check_tower(experiment: Experiment) -> None:
    """What computes the tower of `resnet` in a way of its own is chosen with no other network."""
    network, openvino = experiment.network, experiment.learner.cpu_convolutions == "openvino"
    for setting, otherwise, chosen in (
        ("actors.inference = int8", "actors.inference=local", experiment.actors.inference == "int8"),
        ("int8.on_tpu", "int8.on_tpu=false", experiment.int8.on_tpu),
        ("learner.cpu_convolutions = openvino", "learner.cpu_convolutions=xla", openvino),
    ):
        if chosen and not isinstance(network, ResNetConfig):
            raise ValueError(
                f"{setting} supports the network resnet, not '{network.name}'; set {otherwise} or network.name=resnet"
            )


def check_replay(experiment: Experiment) -> None:
    """Replay can hold what learning starts from, and its tolerance admits every insert and read."""
    if not experiment.has_self_play:
        return
    replay, tolerance, least = experiment.replay, experiment.replay_tolerance, experiment.least_tolerance
    advice = _enough(experiment)
    if replay.min_size > replay.capacity:
        raise ValueError(
            f"replay.min_size {replay.min_size} is larger than replay.capacity {replay.capacity}: "
            f"learning would never start; {advice}"
        )
    if tolerance < least:
        raise ValueError(
            f"replay.tolerance {tolerance:g} would deadlock: with samples_per_insert {replay.samples_per_insert:g}, "
            f"batch {experiment.learner.batch_size}, {replay.shards} shards and {replay.samples_per_item} samples per "
            f"item it must be at least {least:g}; {advice}"
        )
    # With a larger one, the first samples could be learned from more often than `samples_per_insert` says.
    if tolerance > replay.samples_per_insert * replay.min_size:
        raise ValueError(
            f"replay.min_size {replay.min_size} is too small: samples_per_insert * min_size "
            f"({replay.samples_per_insert * replay.min_size:g}) must be at least the tolerance {tolerance:g}; {advice}"
        )


def _enough(experiment: Experiment) -> str:
    """The smallest replay settings, not below the given ones, that avoid a deadlock; for messages."""
    replay = experiment.replay
    tolerance = max(experiment.replay_tolerance, math.ceil(experiment.least_tolerance))
    min_size = max(replay.min_size, math.ceil(tolerance / replay.samples_per_insert))
    wanted = {"min_size": min_size, "capacity": max(replay.capacity, min_size)}
    if tolerance > experiment.replay_tolerance:
        wanted["tolerance"] = math.ceil(tolerance)
    raised = [f"replay.{name}={value}" for name, value in wanted.items() if value != getattr(replay, name)]
    return f"set {' '.join(raised)}"


def check_hosts(experiment: Experiment) -> None:
    """The learner hosts share replay shards and batch equally, and each gets samples of every kind."""
    check_slices(experiment)
    hosts = experiment.cluster.learner_hosts
    shares = {"replay.shards": experiment.replay_shards, "learner.batch_size": experiment.learner.batch_size}
    for name, value in shares.items():
        _check_multiple(name, value, hosts, "learner hosts (cluster.slice, cluster.hosts), which share it equally")
    others = {"reanalyse.share": experiment.reanalyse.share, "data.share": experiment.data.records}
    kinds = [name for name, used in others.items() if used and experiment.has_self_play]
    least = hosts * (1 + len(kinds))
    if experiment.learner.batch_size < least:
        raise ValueError(
            f"learner.batch_size {experiment.learner.batch_size} is too small with {' and '.join(kinds)}: each of "
            f"{hosts} hosts needs a sample of every kind in every batch; set learner.batch_size={least} or more"
        )


def check_slices(experiment: Experiment) -> None:
    """However many slices train, their hosts share the replay shards equally, and their devices the batch."""
    cluster, learner, where = experiment.cluster, experiment.learner, experiment.cluster.tpu
    if where is None or cluster.slices == 1:
        return
    counts = cluster.slice_counts
    among = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else f"{counts[0]}"
    # A mesh that splits parameters across hosts is refused later.
    devices = max(where.hosts, where.devices // learner.mesh.model * learner.microbatches)
    for name, value, of_slice, what in (
        ("replay.shards", experiment.replay_shards, where.hosts, "hosts"),
        ("learner.batch_size", learner.batch_size, devices, "devices of the data axis, times microbatches,"),
    ):
        parts = math.lcm(*(count * of_slice for count in counts))
        divide = f"{what} of {among} slices (cluster.slices, cluster.min_slices) of {where.short_name} divide it"
        _check_multiple(name, value, parts, f"parts into which the {divide}")


def check_reanalyse(experiment: Experiment) -> None:
    """Learning can start with reanalysed samples."""
    reanalyse = experiment.reanalyse
    if not reanalyse.share:
        return
    least = experiment.reanalysed_min_size
    if reanalyse.capacity < least:
        raise ValueError(
            f"reanalyse.capacity {reanalyse.capacity} is too small: learning starts from {least} reanalysed samples "
            f"(replay.tolerance / replay.samples_per_insert); set reanalyse.capacity={least} or more"
        )


def check_data(experiment: Experiment) -> None:
    """The experiment can train on recorded games."""
    data, reanalyse = experiment.data, experiment.reanalyse
    if data.records is None:
        if data != DataConfig():
            raise ValueError("section data is only for recorded games; set data.records to their folder")
        return
    if not experiment.has_self_play:
        if experiment.stop.games is not None:
            raise ValueError("stop.games: no games are played at data.share 1; set stop.steps or stop.minutes")
        if reanalyse.share:
            raise ValueError("reanalyse.share: no states are stored at data.share 1; set reanalyse.share=0")
        return
    if experiment.replay.sampler == "prioritized":
        raise ValueError("replay.sampler: recorded samples have no priorities; set replay.sampler=uniform")
    if data.share + reanalyse.share >= 1:
        raise ValueError(
            f"data.share {data.share:g} and reanalyse.share {reanalyse.share:g} leave no room for fresh samples; "
            "their sum must be below 1"
        )


def check_budget(experiment: Experiment) -> None:
    """A limit of cost needs a price."""
    if experiment.stop.cost is not None and experiment.cluster.price_per_hour is None:
        raise ValueError(
            f"stop.cost {experiment.stop.cost:g} needs the price of all nodes together: set cluster.price_per_hour, or "
            "stop.hours instead"
        )


def schedule_note(experiment: Experiment) -> str | None:
    """A warning that the schedule never decays, because the run has no limit; None if it does not apply."""
    optimizer, stop = experiment.learner.optimizer, experiment.stop
    if optimizer.schedule == "constant" or optimizer.decay_steps or not stop.unlimited:
        return None
    return (
        f"learner.optimizer.schedule = {optimizer.schedule} falls over the run, and section stop has no limit: the "
        f"learning rate stays at {optimizer.learning_rate:g} after the warm-up. Set stop.minutes, stop.steps, "
        "stop.games, stop.hours, or learner.optimizer.decay_steps, for it to fall"
    )
