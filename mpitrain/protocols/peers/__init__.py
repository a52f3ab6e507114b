"""Peers without a master that exchange single gradient elements (Strom, Interspeech 2015, §2.6).

Per minibatch every rank: applies the messages that have come; computes a gradient; adds it to its residual; takes out
what exceeds the threshold, sends it to all peers and applies it to its own replica. With τ > 1 the change by τ local
steps goes into the residual instead; `peer` has all forms of a turn. `synchronous` ranks wait for each other's message
of every round. They need not apply the messages in one order, since integer steps commute.

The first member keeps the records, evaluates, and says when a stage with more ranks begins. All of them come together
only in a `meeting`: to stop, to save a checkpoint, and at the end.

A peer may be a team (`protocols/team.py`): its leader is the member, with the residual of the team's gradient; the
other ranks compute their shares of it, and come to the meetings, which are collectives of all ranks.
"""

import json
from functools import partial

import numpy as np

from mpitrain.algorithms import SparseDelta
from mpitrain.compression.compressor import warm
from mpitrain.compression.thresholds import UNIT
from mpitrain.errors import WireError
from mpitrain.mpi import Transport
from mpitrain.protocols.peers.evening import even_out
from mpitrain.protocols.peers.leftovers import take_up
from mpitrain.protocols.peers.meeting import attend
from mpitrain.protocols.peers.orders import Asynchronous, Synchronous
from mpitrain.protocols.peers.peer import Peer
from mpitrain.protocols.peers.replica import odd_ones
from mpitrain.protocols.team import follow, release, share_model
from mpitrain.training.context import Session


def run(session: Session) -> None:
    """Train until all samples are served or a stop is asked for. Collective over all members."""
    if session.follows:
        session.state.local.clear()  # the leader has the team's residual
    session.say_exchange("sparse messages" if len(session.members) > 1 else "none")
    if len(session.members) > 1:
        session.counters.numbered = False
    require_same_network(session)
    compile_loops(session.transport, SparseDelta.of(session.config.algorithm), session.state.theta.dtype)
    take_up(session)
    session.state.to_device(session.device.to_device)
    if session.follows:
        follow(session, attend)
    else:
        peer = Peer(session)
        loop = (Synchronous if peer.in_step else Asynchronous)(peer)
        session.even_out = partial(even_out, loop)
        loop.train()
        release(session)
    share_model(session)


def require_same_network(session: Session) -> None:
    """Raise WireError, on every rank, naming those that were started with another network, unit, codec or bits."""
    layout = [[p.name, list(p.shape)] for p in session.network.layout.parameters]
    options, dtype = SparseDelta.of(session.config.algorithm), str(session.state.theta.dtype)
    mine = json.dumps([session.network.layout.size, UNIT, options.codec, options.bits, dtype, layout])
    texts = session.transport.gather_texts(mine, "the other peers' networks")
    if odd := odd_ones(texts):
        sizes = ", ".join(f"rank {rank} has {json.loads(texts[rank])[0]} parameters" for rank in odd)
        raise WireError(f"started with another network, unit, codec or bits than the other ranks: {sizes}")


def compile_loops(transport: Transport, options: SparseDelta, dtype: np.dtype) -> None:
    """Compile the loops, or read them from the cache."""
    transport.leader_first(partial(warm, options.codec, options.bits, dtype), "the compilation")
