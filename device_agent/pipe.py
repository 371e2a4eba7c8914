"""What travels between the agent and its training process: MessagePack on a socket, never a pickle."""

from __future__ import annotations

from multiprocessing.connection import Connection
from typing import TypeAlias

import msgspec

from fedbac_edge.protocol.events import Evaluated, EvaluateJob, Trained, TrainJob
from fedbac_edge.settings.federation import Federation

MESSAGE_LIMIT = 1 << 30
"""Bytes; both ends are ours, so this only bounds an accident."""


class Note(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type"):
    """Base of all messages on the pipe."""


class Open(Note, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="open"):
    """To the trainer, first of all and whenever the data have changed: read those at `path`.

    The path is bytes: not every file name is text.
    """

    path: bytes
    resize: bool
    device: str
    federation: Federation
    strict: bool = False


class Do(Note, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="do"):
    """To the trainer: one job, with its blobs by hash. Numbers rise; exactly one of the jobs is set."""

    number: int
    blobs: dict[str, bytes]
    train: TrainJob | None = None
    evaluate: EvaluateJob | None = None


class Cancel(Note, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="cancel"):
    """To the trainer: drop every job up to this number."""

    number: int


class Opened(Note, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="opened"):
    """From the trainer: the data fit. Counts of samples to train on, of labels among them, held out."""

    samples: int
    labelled: int
    holdout: int
    summary: str


class NotOpened(Note, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="not-opened"):
    """From the trainer: the fields of a DataError."""

    where: str
    what: str
    remedy: str


class Loading(Note, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="loading"):
    """From the trainer, during its first job: it begins to load torch, and may not come back."""


class Loaded(Note, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="loaded"):
    """From the trainer, during its first job: torch is loaded, or why it cannot be."""

    problem: str = ""


class Done(Note, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="done"):
    """From the trainer: what the job gave; exactly one is set."""

    number: int
    trained: Trained | None = None
    evaluated: Evaluated | None = None


class Failed(Note, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="failed"):
    """From the trainer: the job could not be done; a sentence."""

    number: int
    reason: str


class Dropped(Note, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="dropped"):
    """From the trainer: the job was cancelled."""

    number: int


ToTrainer: TypeAlias = Open | Do | Cancel
FromTrainer: TypeAlias = Opened | NotOpened | Loading | Loaded | Done | Failed | Dropped

_encode = msgspec.msgpack.Encoder().encode
_to_trainer: msgspec.msgpack.Decoder[ToTrainer] = msgspec.msgpack.Decoder(ToTrainer)
_from_trainer: msgspec.msgpack.Decoder[FromTrainer] = msgspec.msgpack.Decoder(FromTrainer)


def send(connection: Connection, note: Note) -> None:
    """Raises OSError when the other end is gone."""
    connection.send_bytes(_encode(note))


def receive_order(connection: Connection) -> ToTrainer:
    """The next message to the trainer; raises EOFError or OSError when the agent is gone."""
    return _to_trainer.decode(connection.recv_bytes(MESSAGE_LIMIT))


def receive_answer(connection: Connection) -> FromTrainer:
    """The next message from the trainer; raises EOFError or OSError when it is gone."""
    return _from_trainer.decode(connection.recv_bytes(MESSAGE_LIMIT))
