"""`fedbac-agent join`: from settings to a device that stays in its federation until it is told to leave."""

from __future__ import annotations

import contextlib
import importlib.util
import threading
from collections.abc import Iterator

from broker.bus import Bus, Will
from broker.mqtt import MqttBus
from device_agent import identity, pipe
from device_agent.endings import GOODBYE_S, Failed, Misconfigured
from device_agent.narrator import Narrator
from device_agent.recovery import opened_or_new
from device_agent.rescan import Rescan, rescanning
from device_agent.settings import Settings
from device_agent.stay import find, staying
from device_agent.voice import Voice
from device_agent.worker import DataSource, TrainingWorker, WorkerError
from fedbac_edge.datasets.samples import DataError
from fedbac_edge.host import systemd, vector_level
from fedbac_edge.host.cgroups import available_cores
from fedbac_edge.host.signals import Stop
from fedbac_edge.methods import UnknownMethod, method
from fedbac_edge.models.catalog import architecture
from fedbac_edge.models.description import UnknownArchitecture
from fedbac_edge.node import assemble
from fedbac_edge.node.runtime import Inbox, Runtime, Stopped
from fedbac_edge.protocol.device.machine import Device
from fedbac_edge.protocol.device.state import DeviceState, Profile
from fedbac_edge.protocol.events import DataRead
from fedbac_edge.protocol.messages import Spec
from fedbac_edge.settings import live
from fedbac_edge.settings.membership import device_missing

BACK_OFF_S = 0.5
STORE_COST = "that costs a round at most"
FEW = 10
"""Samples below which a device is warned; `holdout.split` holds none out of fewer."""


def join(settings: Settings, voice: Voice) -> None:
    """Join and stay; returns after SIGINT or SIGTERM. Main thread only. Raises Misconfigured, Failed."""
    if importlib.util.find_spec("torch") is None:
        raise Misconfigured("a device that joins trains, and needs torch: pip install 'fedbac-edge[train]'")
    with staying(voice) as leaving, identity.held(settings.state, settings.name) as name:
        client_id = f"fedbac:{settings.edge}:{name}"
        while not leaving():
            spec = find(
                settings.broker,
                settings.federation,
                client_id,
                voice,
                leaving,
                lambda federation: device_missing(federation, settings.edge, name),
            )
            if spec is not None:
                _take_part(settings, name, spec, voice, leaving)


def check_ability(spec: Spec) -> None:
    """Can this device do what is asked? Raises Misconfigured."""
    federation = spec.federation
    model = federation.model
    try:
        architecture(model.architecture, model.input, len(model.classes))
        method(federation)
    except (UnknownArchitecture, UnknownMethod) as error:
        raise Misconfigured(
            f"federation {federation.name} runs software {spec.software}: {error}; update this device"
        ) from error


def _take_part(settings: Settings, name: str, spec: Spec, voice: Voice, leaving: Stop) -> None:
    """Until the device leaves, or the federation under this name becomes another one."""
    check_ability(spec)
    rescan = Rescan(settings.data)
    source = DataSource(str(settings.data), settings.resize, settings.strict, settings.device)
    with contextlib.closing(TrainingWorker(source, spec.federation)) as worker:
        turns = systemd.Turns(leaving)
        try:
            with systemd.watched([turns.poke]):
                opened = worker.open(turns)
        except DataError as error:
            raise Misconfigured(str(error)) from error
        except WorkerError as error:
            raise Failed(str(error)) from error
        if opened is None:
            return
        _warn_of_few(opened, voice)
        federation = spec.federation.name
        store_name = f"{federation}.{settings.edge}"
        with opened_or_new(settings.state, store_name, DeviceState, voice, STORE_COST) as store:
            node = assemble.device(spec, settings.edge, name, _profile(opened), store)
            device = node.machine
            assert isinstance(device, Device)
            narrator = Narrator(
                voice.say,
                device,
                f"joined {federation} as {name} at gateway {settings.edge} ({settings.broker}): "
                f"{opened.summary}",
                {
                    "federation": federation,
                    "gateway": settings.edge,
                    "device": name,
                    "samples": opened.samples,
                    "holdout": opened.holdout,
                },
            )
            narrator.overhear(node)

            def open_bus(inbox: Inbox, will: Will) -> Bus:
                client_id = f"fedbac:{federation}:{settings.edge}:{name}"
                return _Bus(settings.broker, client_id, inbox, will, back_off=BACK_OFF_S)

            runtime = Runtime(
                store,
                node,
                open_bus,
                worker,
                observe=lambda node: narrator.observe(node, runtime.link),
                until=lambda node: _is_over(device, spec),
            )
            worker.on_read(lambda found: runtime.tell(_read(found)))
            try:
                with (
                    leaving.wakes(runtime.stop),
                    _reminding(narrator),
                    rescanning(rescan, worker, voice),
                    systemd.watched([runtime.poke]),
                ):
                    systemd.notify(f"STATUS=device {name} of {federation}")
                    runtime.run()
            except Stopped as error:
                raise Failed(str(error)) from error


def _is_over(machine: Device, spec: Spec) -> bool:
    """True for another federation, one that has no place here any more, and a new training process."""
    if machine.state.instance != spec.instance:
        return True
    if device_missing(machine.federation, machine.gateway, machine.name):
        return True
    changed = live.restarts_trainers(spec.federation, machine.federation)
    return changed and machine.between_rounds


class _Bus(MqttBus):
    """A bus that says goodbye before a device has to be gone."""

    def close(self, timeout: float = GOODBYE_S) -> None:
        super().close(timeout)


def _profile(opened: pipe.Opened) -> Profile:
    cores = available_cores()
    return Profile(
        samples=opened.samples,
        labelled=opened.labelled,
        holdout=opened.holdout,
        hardware=f"{vector_level.level()}, {cores} cores",
    )


def _warn_of_few(opened: pipe.Opened, voice: Voice) -> None:
    """Of a handful nothing much can be learned, and nothing be held out to judge by."""
    if opened.samples + opened.holdout < FEW:
        voice.say(
            "few",
            f"warning: only {opened.samples + opened.holdout} samples: give this device more. With fewer "
            f"than {FEW} labelled ones none is held out, so nothing here judges the model",
            samples=opened.samples,
        )


def _read(found: pipe.Opened | pipe.NotOpened) -> DataRead:
    """What the machine is told of a reading; data that cannot be used are none."""
    if isinstance(found, pipe.NotOpened):
        return DataRead(0, 0, 0)
    return DataRead(found.samples, found.labelled, found.holdout)


@contextlib.contextmanager
def _reminding(narrator: Narrator) -> Iterator[None]:
    """A thread that lets the narrator speak while nothing happens."""
    over = threading.Event()

    def run() -> None:
        while not over.wait(1.0):
            narrator.remind()

    thread = threading.Thread(target=run, name="reminder", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
