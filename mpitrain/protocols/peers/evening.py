"""After the loss of a peer: one replica gets all messages of the ranks that are left, and of each lost rank as many as
any of them has applied; all ranks then continue with this replica."""

import msgspec
import numpy as np

from mpitrain.errors import RankLost
from mpitrain.mpi import Transport
from mpitrain.protocols.peers.exchange import DeltaExchange
from mpitrain.protocols.peers.meeting import Meetings

WHAT = "the messages of a lost rank"


class Applied(msgspec.Struct, frozen=True):
    """How far a rank has come: of each sender the messages that it has applied and the turns that these tell of, its
    own next round (`place`), and where the last round ends in which it has trained (`reached`)."""

    messages: dict[int, int]
    turns: dict[int, int]
    place: int
    reached: int


def even_out(loop: Meetings, transport: Transport, lost: list[int]) -> bool:
    """Bring one replica up to date, and the queue to the samples that nobody has trained on; returns whether this rank
    has that replica. `transport` connects the members that are not `lost`, in order. Collective.

    The newest message of a lost rank in this replica tells how many turns that rank has done. Its later turns, which
    may have been in its residual only, are done again. Raises WireError for a message that cannot be repeated.
    """
    peer, exchange = loop.peer, loop.exchange
    left = [member for member in peer.members if member not in lost]
    _apply_what_came(exchange)
    replica = exchange.replica
    mine = msgspec.json.encode(Applied(replica.sequences, replica.turns, loop.place, loop.reached)).decode()
    found = [msgspec.json.decode(text, type=Applied) for text in transport.gather_texts(mine, WHAT)]
    newest = max(range(len(left)), key=lambda rank: sum(found[rank].messages[each] for each in lost))
    for rank, sender in enumerate(left):
        first = found[newest].messages[sender]
        own = exchange.outbox.since(first) if rank == transport.rank else []
        text = transport.broadcast(msgspec.msgpack.encode([message.tobytes() for message in own]), WHAT, rank)
        if transport.rank == newest != rank:
            for message in msgspec.msgpack.decode(text, type=list[bytes]):
                exchange.replica.read(np.frombuffer(message, np.uint8), sender)
    places = {sender: (each.place, each.reached) for sender, each in zip(left, found, strict=True)}
    for number, member in enumerate(peer.members):
        if member in lost:
            places[member] = loop.after(number, found[newest].turns[member])
    reached = max(reached for _, reached in places.values())
    peer.state.queue = peer.rounds.remaining([places[member][0] for member in peer.members], reached)
    return transport.rank == newest


def _apply_what_came(exchange: DeltaExchange) -> None:
    for peer in exchange.peers:
        try:
            while exchange.take_from(peer):
                pass
        except RankLost:  # only a part of a message came
            continue
