"""Make a rank's session: its state, with the initial weights, and what computes its gradients."""

from functools import partial

import numpy as np

from mpitrain.api.setup import Prepared
from mpitrain.config import Config
from mpitrain.device import Cpu, agree
from mpitrain.flat import Array
from mpitrain.models.model import Model
from mpitrain.monitoring import trace
from mpitrain.monitoring.figures import RankFigures
from mpitrain.mpi import Transport, cuda_aware
from mpitrain.mpi.team import Team
from mpitrain.mpi.witness import Witness
from mpitrain.protocols.team import Leading
from mpitrain.sampling.queue import Queue
from mpitrain.signals import Stop
from mpitrain.training.context import Session, fresh, teams_of, workers_of
from mpitrain.training.gradients import Learner, orders_of


def new_session(
    transport: Transport, config: Config, prepared: Prepared, stop: Stop, witness: Witness | None
) -> Session:
    """This rank's session, with the initial weights. Collective."""
    device, source, corpus, network, _ = prepared
    agree(device, transport, *cuda_aware(config.run.cuda_aware))
    if config.run.trace:
        prepared = prepared._replace(device=trace.observed(device, transport.stopwatch))
    schedule = config.schedule(corpus.samples, transport.size).among(workers_of(config, transport))
    with transport.working():
        initial = _initial(transport, config, network, device)
        state = fresh(config.algorithm, initial, Queue(corpus.samples, schedule.total))
    teams, figures = teams_of(config, transport), RankFigures()
    team = None if config.run.team == 1 else _team(transport, config, prepared, teams)
    alone = config.algorithm.workers(transport.size) == 1 and not config.algorithm.has_master
    session = Session(
        config,
        transport,
        [ranks[0] for ranks in (teams[:1] if alone else teams)],
        network,
        _learner(transport, config, prepared, team, figures),
        schedule,
        state,
        transport.clock if witness is None else lambda: witness.clock(transport.clock()),
        stop,
        device=prepared.device,
        team=team,
        figures=figures,
        witness=witness or Witness(),
        documents={**network.documents, **source.documents},
    )
    session.counters.measures = not device.phantom
    return session


def _initial(transport: Transport, config: Config, network: Model, device: Cpu) -> Array:
    """The initial weights. Simulated ranks compute them once, and each gets a copy."""
    dtype = np.dtype(config.training.dtype)
    if device.phantom:
        return device.host_zeros(network.layout.size, dtype)
    theta = transport.runtime.once("the initial weights", lambda: network.initial(config.initial_seed, dtype))
    return theta.copy() if transport.runtime.simulated else theta


def _team(transport: Transport, config: Config, prepared: Prepared, teams: list[list[int]]) -> Team:
    """This rank's team, whose ranks share memory if they compute on CPUs. Collective."""
    team = Team(transport, teams)
    if not transport.runtime.simulated:
        devices = transport.gather_texts(prepared.device.name, "the devices")
        if set(devices) == {"cpu"}:
            team.share(prepared.network.layout.size, np.dtype(config.training.dtype))
    return team


def _learner(
    transport: Transport, config: Config, prepared: Prepared, team: Team | None, figures: RankFigures
) -> Learner:
    training, corpus, runtime = config.training, prepared.corpus, transport.runtime
    orders = runtime.once(
        "the order of the samples",
        lambda: orders_of(training.seed, corpus.samples, config.algorithm.chunked, prepared.sharing),
    )
    make = partial(Leading, team) if team is not None and team.leads else Learner
    return make(
        prepared.network,
        corpus,
        training,
        independent=config.algorithm.independent,
        orders=orders,
        device=prepared.device,
        deadline=config.run.deadline,
        pace=runtime.pace.gradient if runtime.simulated else None,
        stopwatch=transport.stopwatch,
        figures=figures if config.run.gradient_statistics else None,
    )
