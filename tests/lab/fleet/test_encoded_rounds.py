"""With every encoding: the same hashes through every fault, and error feedback that counts exactly once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from safetensors.numpy import load, save

from fedbac_edge.lab.fleet.faults import Faults
from fedbac_edge.parts import encodings
from fedbac_edge.parts.encodings import Encoding
from fedbac_edge.parts.part import pack, unpack
from fedbac_edge.protocol.events import Trained
from fedbac_edge.protocol.gateway import gate, norm_gate
from fedbac_edge.settings.federation import Federation, WireTable

Build = Callable[..., Any]
METHOD = "[selection]\nwarm_up = 1\nparticipation = 1.0\n[assignment]\nevery = 2\n"
BAD_DAY = Faults(drop=0.05, duplicate=0.1, delay_s=3, cut=0.01, crash=0.05, restart_s=3)
ENCODINGS: tuple[Encoding, ...] = ("float16", "int8")
SENDERS = ("d1", "d2", "d3", "d4", "gw1", "gw2")


@pytest.fixture(scope="module")
def federations(settings: Build) -> dict[str, Federation]:
    """By encoding: five rounds, a sweep after the second and the fourth."""
    return {
        name: settings(rounds=5, head="seed = 3", more=f'{METHOD}[wire]\nencoding = "{name}"')
        for name in encodings.NAMES
    }


@pytest.fixture(scope="module")
def runs(build: Build, federations: dict[str, Federation]) -> dict[str, Any]:
    """By encoding: fleets that nothing disturbed, at their end."""
    fleets = {name: build(federation) for name, federation in federations.items()}
    assert all(fleet.run() for fleet in fleets.values())
    return fleets


@pytest.fixture(scope="module")
def undisturbed(runs: dict[str, Any]) -> dict[str, dict[str, str]]:
    """Encoding -> final hashes."""
    return {name: fleet.hashes() for name, fleet in runs.items()}


def feedback_of(fleet: Any, name: str) -> Any:
    return (fleet.gateway(name) if name.startswith("gw") else fleet.device(name)).feedback


def test_encodings_make_a_difference_and_bytes_fewer(
    runs: dict[str, Any], undisturbed: dict[str, dict[str, str]]
) -> None:
    assert len({repr(hashes) for hashes in undisturbed.values()}) == 3
    up = {
        name: sum(line.detail["up_bytes"] for line in fleet.ledger("cloud", "summary"))
        for name, fleet in runs.items()
    }
    assert up["float16"] < 0.55 * up["float32"]
    assert up["int8"] < 0.33 * up["float32"]


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("seed", range(3))
def test_faults_of_every_kind_change_no_bit(
    build: Build,
    federations: dict[str, Federation],
    undisturbed: dict[str, dict[str, str]],
    encoding: str,
    seed: int,
) -> None:
    fleet = build(federations[encoding], BAD_DAY, seed)
    assert fleet.run()
    assert fleet.hashes() == undisturbed[encoding]


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("round", [1, 4])
def test_killed_between_sending_and_receipt(
    build: Build,
    federations: dict[str, Federation],
    undisturbed: dict[str, dict[str, str]],
    encoding: str,
    round: int,
) -> None:
    """Each sender in turn, when the broker has its update: what it sends again are the same bytes."""
    for victim in ("d1", "gw1"):
        fleet = build(federations[encoding])
        sent = Updates(fleet, victim)
        assert fleet.world.run(lambda sent=sent: round in sent.rounds())
        if encoding == "int8":
            assert set(feedback_of(fleet, victim).pending) == {"global", "cluster"}
        fleet.world.crash(victim, restart_s=0.005)  # before the receipt can have come
        assert fleet.run()
        assert fleet.hashes() == undisturbed[encoding], victim
        assert sent.rounds().count(round) >= 2
        assert len(set(sent.payloads)) == len(set(sent.rounds())) == 5


class Updates:
    """What the broker gets of one sender's updates."""

    def __init__(self, fleet: Any, sender: str) -> None:
        self.payloads: list[bytes] = []
        publish = fleet.world.broker.publish

        def overhear(topic: str, payload: bytes, retain: bool = False) -> None:
            if topic.endswith(f"/{sender}/update") and b"-update" in payload:
                self.payloads.append(payload)
            publish(topic, payload, retain)

        fleet.world.broker.publish = overhear

    def rounds(self) -> list[int]:
        return [message_round(payload) for payload in self.payloads]


def message_round(payload: bytes) -> int:
    found: int = msgspec.msgpack.decode(payload)["m"]["round"]
    return found


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_no_receipt_ever_comes(
    build: Build, federations: dict[str, Federation], undisturbed: dict[str, dict[str, str]], encoding: str
) -> None:
    """The next task says what counted."""
    fleet = build(federations[encoding])
    publish = fleet.world.broker.publish

    def deaf(topic: str, payload: bytes, retain: bool = False) -> None:
        if not topic.endswith("/receipt"):
            publish(topic, payload, retain)

    fleet.world.broker.publish = deaf
    assert fleet.run()
    assert fleet.hashes() == undisturbed[encoding]
    assert fleet.ledger("d1", "receipt") == []


def test_residuals_are_stored_and_old_ones_collected(
    build: Build, federations: dict[str, Federation]
) -> None:
    fleet = build(federations["int8"])
    assert fleet.run()
    fleet.go_on(10.0)
    for name in SENDERS:
        state = feedback_of(fleet, name)
        assert set(state.owed) == {"global", "cluster"}
        assert state.pending == {}
        blobs = fleet.world.processes[name].store.blobs
        schema = gate.schemas(fleet.federation)["global"]
        for residual in state.owed.values():
            assert any(tensor.any() for tensor in unpack(blobs[residual.hash], schema).values())
        assert len(blobs) <= 9


def test_a_site_that_moves_owes_nothing_to_its_new_cluster(build: Build, settings: Build) -> None:
    moved = False
    for seed in range(20):
        more = '[selection]\nparticipation = 1.0\n[assignment]\nevery = 1\n[wire]\nencoding = "int8"'
        fleet = build(settings(rounds=4, head=f"seed = {seed}", more=more))
        for round in (2, 3, 4):
            assert fleet.run_to_round(round)
            assert fleet.world.run(lambda fleet=fleet, round=round: _has_task(fleet, "d1", round))
            cluster = fleet.gateway("gw1").task.cluster
            owed = feedback_of(fleet, "d1").owed
            was = fleet.ledger("cloud", "summary", round - 1)[0].detail["sites"]["gw1"]["cluster"]
            assert ("cluster" in owed) == (cluster == was)
            assert "global" in owed
            moved = moved or cluster != was
        if moved:
            return
    pytest.fail("no site moved in any run")


def _has_task(fleet: Any, device: str, round: int) -> bool:
    task = fleet.device(device).task
    return task is not None and task.round == round and hasattr(task, "counted")


def test_a_refused_update_leaves_the_old_residual(build: Build, federations: dict[str, Federation]) -> None:
    fleet = build(federations["int8"], without=("d1",))

    def spoil(trained: Trained) -> Trained:
        if trained.job != "train-2":
            return trained
        return Trained(**{**vars(trained), "samples": 0})

    fleet.add_device("gw1", "d1", spoil=spoil)
    assert fleet.run_to_round(2)
    fleet.world.run(lambda: _has_task(fleet, "d1", 2))
    before = feedback_of(fleet, "d1").owed
    assert set(before) == {"global", "cluster"}
    assert fleet.run_to_round(3)
    fleet.world.run(lambda: _has_task(fleet, "d1", 3))
    after = feedback_of(fleet, "d1").owed
    assert after["global"] == before["global"]
    assert [line.subject for line in fleet.ledger("gw1", "refused")] == ["d1"]


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_step_that_the_encoding_cannot_express_is_declined(
    build: Build, federations: dict[str, Federation], encoding: str
) -> None:
    federation = federations[encoding]
    schema = gate.schemas(federation)["global"]
    fleet = build(federation, without=("d1",))

    def spoil(trained: Trained) -> Trained:
        huge = {name: np.full(shape, np.inf, np.float32) for name, shape in schema.items()}
        return Trained(**{**vars(trained), "parts": dict.fromkeys(trained.parts, pack(huge))})

    fleet.add_device("gw1", "d1", spoil=spoil)
    assert fleet.run()
    lines = fleet.ledger("gw1", "declined")
    assert {line.subject for line in lines} == {"d1"}
    assert f"too large for {encoding}" in lines[0].detail["why"]


def test_another_encoding_than_the_federations_is_refused(
    build: Build, federations: dict[str, Federation]
) -> None:
    """A device that believes in another one: its updates do not count, the reason is in the ledger."""
    fleet = build(federations["float32"])
    device = fleet.world.processes["d1"]
    make = device.make

    def stubborn(store: Any) -> Any:
        node = make(store)
        other = msgspec.structs.replace(node.machine.federation, wire=WireTable(encoding="int8"))
        node.machine.federation = other
        return node

    device.make = stubborn
    assert fleet.run()
    lines = fleet.ledger("gw1", "refused")
    assert [line.subject for line in lines] == ["d1"] * 5
    assert lines[0].detail["why"] == "the update is encoded as int8, this federation uses float32"


def test_the_gate_measures_what_comes_out(settings: Build) -> None:
    """int8 levels are small numbers whatever the step: the norm is that of the decoded step."""
    federation = settings(more='[wire]\nencoding = "int8"')
    schema = gate.schemas(federation)["global"]
    base = {name: np.zeros(shape, np.float32) for name, shape in schema.items()}
    norms = []
    for scale in (0.01, 1.0):
        step = {name: np.full(shape, scale, np.float32) for name, shape in schema.items()}
        data, _ = encodings.encode("int8", step, base, None)
        steps = gate.check_parts({"global": data}, "int8", {"global": pack(base)}, federation)
        assert steps.keys() == {"cluster+global"}
        norms.append(norm_gate.length(steps))
    numbers = sum(int(np.prod(shape)) for shape in schema.values())
    np.testing.assert_allclose(norms, [0.01 * numbers**0.5, numbers**0.5], rtol=1e-5)
    assert norm_gate.is_suspect({"cluster+global": [norms[0]] * 20}, steps)
    tensors = load(data)
    spoiled = save({**tensors, encodings.SCALES: 0 * tensors[encodings.SCALES]})
    with pytest.raises(gate.Refused, match="global: a scale"):
        gate.check_parts({"global": spoiled}, "int8", {"global": pack(base)}, federation)
