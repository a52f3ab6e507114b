"""The file of one rank's order of events (`run.record_order`): all that its course depended on beside its input.

A file is MAGIC and frames: kind, length, checksum, content. The checksum's seed is the frame's number, so that none can
be missing, repeated or misplaced. The first frame is a `LogHeader`, the last one an `End`, both in JSON; those between
hold events. An event is one integer, in seven bits a byte with the lowest first (LEB128): its value times KINDS, plus
its kind.
"""

import struct
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeVar

import msgspec
import xxhash

from mpitrain.errors import BadInput, naming
from mpitrain.files import read_whole, writing

FOLDER = "order"
MAGIC = b"mpitrain order 1\n"
FRAME = struct.Struct("<BIQ")
FULL = 1 << 16  # bytes of events in a frame
LONGEST = 1 << 24  # bytes of a frame, at most
LARGEST = 1 << 34  # bytes of a file, at most
KINDS = 8
MOST = 1 << 63  # no event is greater
TAGS = 1 << 12  # a message's event is its source times this, plus its tag


class EventKind(IntEnum):
    """The kinds of events."""

    NOTHING = 0  # this many polls in a row, for messages and for the ends of requests, have found nothing
    HAPPENED = 1  # a test has succeeded
    MESSAGE = 2  # a probe has found a message
    CONTENT = 3  # the checksum of what was received
    CLOCK = 4  # microseconds since its last reading of the clock
    STOP = 5  # this many checks for a stop request were made when one was found


class LogHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was recorded. All fields but `rank` are the same on all ranks."""

    run: str  # drawn anew for each recording
    rank: int
    ranks: int
    nodes: list[int]  # for each rank, the first rank of its node
    threads: int  # of each rank
    probes: int  # see `Runtime.probes`
    by: str  # program, with a checksum of its source, libraries and machine
    config: str  # TOML


class End(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a training ended."""

    events: int
    reason: int  # exit status
    parameters: str  # SHA-256, as in summary.json


class LoggedEvent(NamedTuple):
    """One event, and its number."""

    number: int
    kind: EventKind
    value: int


Document = TypeVar("Document", LogHeader, End)
_HEADER, _EVENTS, _END = range(3)


def file_of(run: Path, rank: int) -> Path:
    """Where the events of a rank are in a run folder."""
    return run / FOLDER / f"rank-{rank:05d}"


class LogWriter:
    """Writes a file, frame by frame. Raises BadInput naming it when that fails."""

    def __init__(self, path: Path, header: LogHeader) -> None:
        self._path, self._frames, self._events = path, 0, 0
        self._pending, self._nothing = bytearray(), 0
        with writing(path):
            path.parent.mkdir(exist_ok=True)
            self._file: BinaryIO = path.open("xb")
            self._file.write(MAGIC)
        self._frame(_HEADER, msgspec.json.encode(header))

    def event(self, kind: EventKind, value: int = 0) -> None:
        """Write an event. Polls that have found nothing are counted until the next other event."""
        if kind is EventKind.NOTHING:
            self._nothing += 1
            return
        self._put_nothing()
        self._put(kind, value)
        if len(self._pending) >= FULL:
            self._flush()

    def close(self, status: int, parameters: str) -> None:
        """Write the end of the training, and close the file."""
        self._put_nothing()
        self._flush()
        self._frame(_END, msgspec.json.encode(End(self._events, status, parameters)))
        with writing(self._path):
            self._file.close()

    def _put_nothing(self) -> None:
        if self._nothing:
            self._put(EventKind.NOTHING, self._nothing)
            self._nothing = 0

    def _put(self, kind: EventKind, value: int) -> None:
        self._events += 1
        number, pending = value * KINDS + kind, self._pending
        while number >= 0x80:
            pending.append(number & 0x7F | 0x80)
            number >>= 7
        pending.append(number)

    def _flush(self) -> None:
        self._frame(_EVENTS, self._pending)
        self._pending.clear()

    def _frame(self, kind: int, content: bytes | bytearray) -> None:
        head = FRAME.pack(kind, len(content), _checksum(content, kind, self._frames))
        self._frames += 1
        with writing(self._path):
            self._file.write(head + content)
            self._file.flush()


class Order:
    """A file that has been read whole. Raises BadInput naming it where it is damaged, or ends early."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with naming(path):
            content = read_whole(path, LARGEST)
        frames = list(_frames(path, content))
        kinds = [kind for kind, _ in frames]
        if kinds[:1] != [_HEADER]:
            raise BadInput(f"{path}: no record of the order of events")
        self.header = self._decoded(frames[0][1], LogHeader)
        self._events = b"".join(frame for kind, frame in frames if kind == _EVENTS)
        count = sum(byte < 0x80 for byte in self._events)
        if kinds[-1] != _END:
            raise BadInput(f"{path}: ends after {count:,} events, without the training's end: the run did not finish")
        self.end = self._decoded(frames[-1][1], End)
        if count != self.end.events or kinds.count(_HEADER) + kinds.count(_END) != 2:
            raise BadInput(f"{path}: is damaged: it holds {count:,} events, and {self.end.events:,} were written")

    def events(self) -> Iterator[LoggedEvent]:
        """The events, in order. Raises BadInput for an invalid one."""
        kinds = [EventKind(kind) for kind in range(len(EventKind))]
        number, shift, count = 0, 0, 0
        for byte in self._events:
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                if number >= MOST or number % KINDS >= len(kinds):
                    raise BadInput(f"{self.path}: event {count} is none")
                yield LoggedEvent(count, kinds[number % KINDS], number // KINDS)
                number, shift, count = 0, 0, count + 1

    def _decoded(self, content: bytes, kind: type[Document]) -> Document:
        try:
            return msgspec.json.decode(content, type=kind)
        except msgspec.DecodeError as error:
            raise BadInput(f"{self.path}: is damaged: {error}") from error


def _frames(path: Path, content: bytes) -> Iterator[tuple[int, bytes]]:
    """The kinds and contents of a file's whole frames; a last one that is cut off is left out."""
    if content[: len(MAGIC)] != MAGIC:
        raise BadInput(f"{path}: no record of the order of events")
    at, number = len(MAGIC), 0
    while at + FRAME.size <= len(content):
        kind, length, checksum = FRAME.unpack_from(content, at)
        frame = content[at + FRAME.size : at + FRAME.size + length]
        if kind > _END or length > LONGEST:
            raise BadInput(f"{path}: is damaged: frame {number} has no right beginning")
        if len(frame) < length:
            return
        if _checksum(frame, kind, number) != checksum:
            raise BadInput(f"{path}: is damaged: frame {number} does not match its checksum")
        yield kind, frame
        at, number = at + FRAME.size + length, number + 1
        if kind == _END and at < len(content):
            raise BadInput(f"{path}: is damaged: more follows its end")


def _checksum(content: bytes | bytearray, kind: int, number: int) -> int:
    return int(xxhash.xxh3_64_intdigest(bytes(content), number * KINDS + kind))
