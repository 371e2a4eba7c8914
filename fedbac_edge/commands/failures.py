"""Expected failures become one sentence and an exit code: 2 for what was asked, 1 for what went wrong."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import click

from fedbac_edge.host import signals

EXTRAS = {
    "PIL": "infer",
    "cryptography": "keys",
    "iotcore": "broker",
    "matplotlib": "report",
    "onnx": "export",
    "onnxruntime": "infer",
    "ray": "ray",
    "scipy": "lab",
    "torch": "train",
}
"""Package that is not everywhere -> the extra of ours that brings it."""


class Misconfigured(click.ClickException):
    """Bad usage, configuration or data: nothing was done."""

    exit_code = 2


class Failed(click.ClickException):
    """It was well asked and did not succeed."""

    exit_code = 1


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Turn the failures that this software foresees into click's; leave the others as they are: bugs.

    A signal ends what goes on in here, but inside of `signals.stopping`.
    """
    try:
        with signals.interruptible():
            yield
    except click.ClickException:
        raise
    except Exception as error:
        # Imported only now: the code that raised it has loaded its module already.
        from broker.access import AccessError
        from broker.process import BrokerError
        from broker.topics import BadName
        from broker.url import BadUrl
        from export.served import ExportError, UnknownView
        from fedbac_edge.datasets.download import DownloadError
        from fedbac_edge.datasets.partition import PartitionError
        from fedbac_edge.datasets.samples import DataError
        from fedbac_edge.federation_file.beginnings import BadWeights
        from fedbac_edge.federation_file.reading import FederationError
        from fedbac_edge.node.discovery import DiscoveryError, Interrupted
        from fedbac_edge.node.runtime import Stopped
        from fedbac_edge.node.store import StoreError, StoreFailed

        asked = (
            *(AccessError, BadWeights, FederationError, DataError, PartitionError),
            *(BadUrl, BadName, StoreError, UnknownView),
        )
        if isinstance(error, signals.Interrupted):  # the command says what was stopped
            raise
        if isinstance(error, BrokenPipeError):  # the reader has gone (`| head`): click ends without a word
            raise
        if isinstance(error, asked):
            raise Misconfigured(str(error)) from error
        if isinstance(error, sqlite3.DatabaseError):
            raise Failed(f"a store cannot be read ({error}): it is damaged, or the disk fails") from error
        if isinstance(error, ModuleNotFoundError) and (extra := EXTRAS.get((error.name or "").split(".")[0])):
            raise Failed(f"{error.name} is missing: pip install 'fedbac-edge[{extra}]'") from error
        if isinstance(error, PermissionError) and error.filename is not None:
            raise Misconfigured(_sentence(error)) from error
        if isinstance(error, Interrupted):
            raise Failed("stopped before a federation was found") from error
        if isinstance(
            error,
            (
                BrokerError,
                DiscoveryError,
                DownloadError,
                ExportError,
                Stopped,
                StoreFailed,
                OSError,
                signals.Broken,
            ),
        ):
            raise Failed(_sentence(error)) from error
        raise


def stopped_run(command: str, folder: Path | None) -> Failed:
    """`fedbac COMMAND` was stopped by a signal, while its run was in `folder` or on its way there."""
    if folder is None or not (folder / "run.json").exists():
        return Failed("stopped before the run had begun; give the same command again")
    return Failed(f"stopped; `fedbac {command} --resume --out {folder}` goes on")


@contextlib.contextmanager
def remedied(remedy: str) -> Iterator[None]:
    """A damaged store becomes a sentence that ends with what to do about it."""
    from fedbac_edge.node.store import StoreDamaged

    try:
        yield
    except StoreDamaged as error:
        cause = "a power cut or a failing disk does that"
        raise Misconfigured(f"{error}; {cause}. Nothing was changed. Do this: {remedy}") from error


def _sentence(error: Exception) -> str:
    """Of the system's own errors the file and the reason, without numbers and brackets."""
    if isinstance(error, FileExistsError | NotADirectoryError) and error.filename is not None:
        return f"{error.filename}: a file is there where a folder is needed; give another"
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error)
