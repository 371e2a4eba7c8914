"""What `join` and `serve` have in common: they stay until told to leave, and look for their federation."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from collections.abc import Callable, Iterator

from broker.url import BrokerUrl
from device_agent import identity
from device_agent.endings import Failed, Misconfigured
from device_agent.voice import Voice, VoiceHandler
from fedbac_edge.host import output, signals, systemd
from fedbac_edge.host.signals import Stop
from fedbac_edge.node import discovery
from fedbac_edge.node.runtime import Stopped
from fedbac_edge.node.store import StoreError, StoreFailed
from fedbac_edge.protocol.messages import Spec
from fedbac_edge.settings.federation import Federation


@contextlib.contextmanager
def staying(voice: Voice) -> Iterator[Stop]:
    """Signals become the wish to leave, warnings go to `voice`, failures become Misconfigured or Failed."""
    output.not_needed()
    handler = VoiceHandler(voice)
    logging.getLogger().addHandler(handler)
    try:
        with signals.stopping() as leaving:
            yield leaving
        voice.say("left", "left")
    except (identity.IdentityError, StoreError) as error:
        raise Misconfigured(str(error)) from error
    except (Stopped, StoreFailed, OSError, signals.Broken) as error:
        raise Failed(str(error)) from error
    except sqlite3.Error as error:
        raise Failed(f"the store cannot be read ({error}): the disk may be failing") from error
    finally:
        systemd.notify("STOPPING=1")
        logging.getLogger().removeHandler(handler)


def find(
    broker: BrokerUrl,
    federation: str | None,
    client_id: str,
    voice: Voice,
    leaving: Stop,
    missing: Callable[[Federation], str],
) -> Spec | None:
    """The federation with a place for this device (nothing is `missing`), waited for as long as it takes.

    None when told to leave meanwhile.
    """
    systemd.notify("READY=1", "STATUS=looking for the federation")
    turns = systemd.Turns(leaving)
    try:
        with systemd.watched([turns.poke]):
            return discovery.find_spec(
                broker, federation, client_id, lambda text: voice.say("waiting", text), turns, missing=missing
            )
    except discovery.Interrupted:
        return None
    except discovery.SeveralFederations as error:
        raise Misconfigured(str(error)) from error
    except discovery.DiscoveryError as error:
        raise Failed(str(error)) from error
