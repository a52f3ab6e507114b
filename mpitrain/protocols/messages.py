"""The table of messages: what ranks say to each other beside vectors, and under which tag.

Each kind of message is a struct of its own. On the wire it lies in an envelope (MessagePack), with its sender's traffic
and whether it was asked to stop, between a magic word and a checksum. A tag has its own set of kinds; whatever else
comes under it, and whatever came damaged, raises WireError naming the sender. A vector travels in a message of its own,
which the message before it announces with length and checksum (`Vectors`).
"""

from typing import Annotated, Any, Generic, Literal, TypeVar, get_args

import msgspec
import xxhash

from mpitrain.device.cpu import Cpu
from mpitrain.errors import WireError
from mpitrain.flat import Array
from mpitrain.mpi import Transport
from mpitrain.mpi.communicator import Request
from mpitrain.mpi.tags import Tag
from mpitrain.sampling.queue import Work
from mpitrain.training.context import Session

_LARGEST = 1.7976931348623157e308
Finite = Annotated[float, msgspec.Meta(ge=-_LARGEST, le=_LARGEST)]
Count = Annotated[int, msgspec.Meta(ge=0)]
Amounts = dict[str, tuple[Finite, Count]]  # by figure, a sum and how many values it adds up


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True, forbid_unknown_fields=True):
    """One kind of message."""


# ---- from a worker to its master


class Claim(Message, frozen=True):
    """Give me samples; of my own chunks I still have `has` minibatches. With samples comes a copy of the centre."""

    has: Count = 0


class Ready(Message, frozen=True):
    """I have gone through enough minibatches: take my gradient when you are free."""


class Gradient(Message, frozen=True):
    """Merge the sum of my gradients, and give me samples. The sum follows, or (`nbytes` = 0) is in shared memory."""

    index: int  # of the Θ from which I began
    work: Work  # the samples it is over
    minibatches: Count = 0
    loss: float = 0.0  # summed over samples; not finite where the gradient is not
    nbytes: Count = 0
    checksum: Count = 0


class Pull(Message, frozen=True):
    """Send me the centre."""


class Pulled(Message, frozen=True):
    """I have read the centre."""


class Move(Message, frozen=True):
    """Add the piece that follows to the centre."""

    nbytes: Count
    checksum: Count


class Report(Message, frozen=True):
    """What I have done since my last report."""

    samples: Count
    loss: Finite  # summed over samples
    exchanges: Count


class Given(Message, frozen=True):
    """The figures of my work since my last message of this kind."""

    amounts: Amounts


class PeriodLosses(Message, frozen=True):
    """The sum of my losses since my last message of this kind: how often has the common learning rate fallen?"""

    minibatches: Count
    loss: Finite


class Copied(Message, frozen=True):
    """My piece of the checkpoint is copied, and I wait. These samples I was given and have not trained on."""

    nbytes: Count
    unused: tuple[Work, ...]


class Done(Message, frozen=True):
    """I shall train no more, nor on these samples that I was given."""

    unused: tuple[Work, ...]


# ---- from a master to its workers


class Assignment(Message, frozen=True):
    """Train on these samples, from a centre no older than this; no more, where there are none."""

    index: int = 0
    work: Work | None = None
    learning_rate: Finite = 0.0


class Place(Message, frozen=True):
    """Your samples begin at this place in the queue; if there are any, the centre follows in pieces."""

    samples: Count


class Piece(Message, frozen=True):
    """The centre's next piece follows."""

    nbytes: Count
    checksum: Count
    index: int = 0  # of a centre that has versions


class Grant(Message, frozen=True):
    """Hand your gradient over."""


class Finish(Message, frozen=True):
    """Train no more."""


class Leave(Message, frozen=True):
    """All have finished."""


class Save(Message, frozen=True):
    """Copy your piece of a checkpoint, and wait."""


class Resume(Message, frozen=True):
    """Go on, and write the piece under the checkpoint's name, unless that is NOT_WRITTEN."""

    name: int


class Falls(Message, frozen=True):
    """How often the common rate has fallen, as an answer to losses."""

    number: Count


class Added(Message, frozen=True):
    """All pieces of your move are added."""


class Token(Message, frozen=True):
    """From worker to worker: it is your turn. `without`: how many in a row had no samples; `finished`: how many will
    take no more turns."""

    without: Count = 0
    finished: Count = 0


# ---- between peers

#: Why a rank comes to a meeting: it has no work left, it was told to stop, it is to save, another rank called.
Reason = Literal["done", "stop", "save", "called"]


class PeerReport(Message, frozen=True):
    """What I have done since my last message of this kind, and the figures of it."""

    samples: Count
    loss: Finite  # summed over samples
    amounts: Amounts


class Reached(Message, frozen=True):
    """The master has come to the round at `place`: ranks whose stage begins there may train."""

    place: Count


class Meeting(Message, frozen=True):
    """The sender waits at meeting `number`. Unless it is merely done, all shall come once their minibatch is done."""

    number: Count
    reason: Reason


# ---- between a master and its workers, and between the first rank and those that have no part in what goes on


class StopRequest(Message, frozen=True):
    """I was asked to stop."""


class Gone(Message, frozen=True):
    """I have heard that it is over; nothing more will come from me."""


class Over(Message, frozen=True):
    """It is over; `complete` unless it was stopped before its end."""

    complete: bool = True


# ---- from a team's leader to its followers, who answer as ranks do that have no part in what goes on


class Share(Message, frozen=True):
    """Compute your share of the gradient of this minibatch; `following` is likely to come next."""

    work: Work
    following: Work | None
    scale: Finite  # what the minibatch's mean gradient is multiplied by


class Attend(Message, frozen=True):
    """Come to the meeting of all ranks."""


# ---- on the wire

MAGIC, CHECK = b"mpt2", 8  # the first bytes, and how many bytes the checksum at the end has
T = TypeVar("T", bound=Message)


class Envelope(msgspec.Struct, Generic[T], frozen=True, array_like=True, forbid_unknown_fields=True):
    """A message, and what every message tells of its sender."""

    message: T
    stopping: bool = False  # the sender was asked to stop
    traffic: Finite = 0.0  # bytes that the sender has sent and received so far


_encoder = msgspec.msgpack.Encoder(enc_hook=lambda number: number.item())  # NumPy's numbers


def pack(message: Message, stopping: bool = False, traffic: float = 0.0) -> bytes:
    """The message in its envelope as bytes."""
    body = MAGIC + _encoder.encode(Envelope(message, stopping, traffic))
    return body + xxhash.xxh3_64_digest(body)


class Channel(Generic[T]):
    """The messages under one tag."""

    def __init__(self, tag: Tag, kinds: Any) -> None:
        self.tag, self.kinds = tag, get_args(kinds) or (kinds,)
        self._decoder: msgspec.msgpack.Decoder[Envelope[T]] = msgspec.msgpack.Decoder(Envelope[kinds])

    def unpack(self, message: bytes, sender: int) -> Envelope[T]:
        """The envelope that these bytes encode. Raises WireError naming the sender."""
        body, check = message[:-CHECK], message[-CHECK:]
        if body[: len(MAGIC)] != MAGIC or xxhash.xxh3_64_digest(body) != check:
            raise WireError(f"rank {sender} sent a corrupt message ({self.tag.name})")
        try:
            return self._decoder.decode(memoryview(body)[len(MAGIC) :])
        except msgspec.DecodeError as error:
            raise WireError(f"rank {sender} sent what is no message here ({self.tag.name}): {error}") from None

    def post(self, transport: Transport, to: int, message: T) -> None:
        """Send a message."""
        transport.post(to, self.tag, pack(message))

    def tell(self, session: Session, to: int, message: T) -> None:
        """Send a message with this rank's traffic outside its team, and whether it was asked to stop."""
        session.transport.post(to, self.tag, pack(message, session.stop.flag, session.own_bytes))

    def poll(self, transport: Transport, *source: int) -> tuple[int, Envelope[T]] | None:
        """A message that has arrived, from one rank or any, as (sender, envelope); None if there is none."""
        arrived = transport.poll(self.tag, *source)
        return None if arrived is None else (arrived[0], self.unpack(arrived[1], arrived[0]))

    def receive(self, transport: Transport, source: int, what: str) -> Envelope[T]:
        """Wait for a message of one rank."""
        return self.unpack(transport.receive(source, self.tag, what), source)


class Vectors:
    """Vectors between two ranks, on the `device` if MPI takes them from there, each announced by a message."""

    def __init__(self, transport: Transport, device: Cpu) -> None:
        self._transport, self._checksum = device.transport(transport), device.checksum
        self._sends: list[Request] = []

    def sealed(self, vector: Array) -> tuple[int, int]:
        """A vector's length in bytes and its checksum, for the message that announces it."""
        return vector.nbytes, self._checksum(vector)

    def send(self, to: int, vector: Array) -> None:
        """Start sending a vector, which stays untouched until `settle`."""
        self._sends.append(self._transport.send(to, Tag.VECTOR, vector))

    def leaving(self) -> bool:
        """Whether a vector is still on its way out."""
        while self._sends and self._sends[-1].Test():  # most often the last to leave
            self._sends.pop()
        return bool(self._sends)

    def settle(self, what: str, whom: list[int] | None = None) -> None:
        """Wait until all have left."""
        for send in self._sends:
            self._transport.wait(send, what, whom=whom)
        self._sends.clear()

    def receive(self, sender: int, announced: Gradient | Move | Piece, out: Array, what: str) -> None:
        """Wait for a vector that a message has announced. Raises WireError naming its sender when it is damaged."""
        if announced.nbytes != out.nbytes:
            raise WireError(f"rank {sender} sends {announced.nbytes} bytes of {what}, expected {out.nbytes}")
        self._transport.receive_into(sender, Tag.VECTOR, out, what)
        if self._checksum(out) != announced.checksum:
            raise WireError(f"rank {sender} sent {what} that does not match its checksum")


FromWorker = (
    Claim | Ready | Gradient | Pull | Pulled | Move | Report | Given | PeriodLosses | Copied | Done | StopRequest
)
FromMaster = Assignment | Place | Piece | Grant | Added | Falls | Finish | Leave | Save | Resume
FromPeer = PeerReport | Reached | Meeting
FromLeader = Share | Attend | Over

TO_MASTER: Channel[FromWorker] = Channel(Tag.TO_MASTER, FromWorker)
TO_WORKER: Channel[FromMaster] = Channel(Tag.TO_WORKER, FromMaster)
TO_NEXT: Channel[Token] = Channel(Tag.TO_NEXT, Token)
TO_PEER: Channel[FromPeer] = Channel(Tag.TO_PEER, FromPeer)
TO_FIRST: Channel[StopRequest | Gone] = Channel(Tag.TO_FIRST, StopRequest | Gone)
TO_IDLE: Channel[Over] = Channel(Tag.TO_IDLE, Over)
TO_TEAM: Channel[FromLeader] = Channel(Tag.TO_TEAM, FromLeader)
