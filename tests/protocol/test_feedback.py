"""A residual counts exactly when its update counted, and belongs to one part."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedbac_edge.parts.encodings import Encoding, decode
from fedbac_edge.parts.part import Part, PartError, Schema, digest, pack, unpack
from fedbac_edge.protocol.gateway import feedback
from fedbac_edge.protocol.gateway.feedback import Feedback
from fedbac_edge.vocabulary.terms import PartRef

SCHEMA: Schema = {"w": (3,)}


class Sender:
    """One role, one store of blobs, and steps that int8 cannot express exactly."""

    def __init__(self, encoding: Encoding = "int8") -> None:
        self.encoding: Encoding = encoding
        self.state, self.blobs = Feedback(), dict[str, bytes]()

    def base(self, name: str = "cluster-0") -> dict[str, PartRef]:
        return {"cluster": PartRef(name, self.store({"w": np.zeros(3, np.float32)}), 12)}

    def store(self, part: Part) -> str:
        data = pack(part)
        self.blobs[digest(data)] = data
        return digest(data)

    def send(
        self, round: int, values: tuple[float, ...] = (1.0, 0.3333, -0.001), name: str = "cluster-0"
    ) -> Any:
        """The step that arrives."""
        base = self.base(name)
        trained = {"cluster": pack({"w": np.array(values, np.float32)})}
        encoded, keeps = feedback.encode_update(
            self.state, self.encoding, round, base, trained, self.blobs, {"cluster": SCHEMA}
        )
        self.blobs.update({keep.hash: keep.data for keep in keeps})
        start = unpack(self.blobs[base["cluster"].hash], SCHEMA)
        return decode(self.encoding, encoded["cluster"], start, SCHEMA)["w"]

    def owed(self) -> Any:
        residual = self.state.owed.get("cluster")
        return None if residual is None else unpack(self.blobs[residual.hash], SCHEMA)["w"]


def test_a_receipt_makes_the_residual_count() -> None:
    sender = Sender()
    arrived = sender.send(1)
    assert sender.owed() is None
    feedback.settle(sender.state, 1, True)
    np.testing.assert_allclose(arrived + sender.owed(), [1.0, 0.3333, -0.001], atol=1e-7)
    assert sender.state.pending == {}
    feedback.settle(sender.state, 1, True)  # a receipt that comes twice
    assert sender.owed() is not None


def test_what_is_owed_is_added_to_the_next_step() -> None:
    sender = Sender()
    total = np.zeros(3)
    for round in range(1, 21):
        feedback.begin(sender.state, sender.base(), round - 1)
        total += sender.send(round)
    np.testing.assert_allclose(total, [20.0, 6.666, -0.02], atol=0.005)


@pytest.mark.parametrize("counted", [0, 1])
def test_a_task_that_does_not_know_the_update_leaves_the_old_residual(counted: int) -> None:
    """Refused, timed out or lost: what was owed before round 2 is owed after it."""
    sender = Sender()
    sender.send(1)
    if counted:
        feedback.settle(sender.state, 1, True)
    before = sender.owed()
    sender.send(2, (5.0, 0.77, 0.01))
    feedback.begin(sender.state, sender.base(), counted)
    np.testing.assert_array_equal(sender.owed(), before)
    assert sender.state.pending == {}


def test_a_task_makes_up_for_a_lost_receipt() -> None:
    sender, other = Sender(), Sender()
    for each in (sender, other):
        each.send(1)
    feedback.settle(sender.state, 1, True)
    feedback.begin(other.state, other.base(), 1)
    np.testing.assert_array_equal(sender.owed(), other.owed())


def test_receipts_of_other_rounds_settle_nothing() -> None:
    sender = Sender()
    sender.send(3)
    feedback.settle(sender.state, 2, True)
    assert sender.owed() is None
    assert sender.state.pending


def test_another_cluster_drops_the_residual_for_good() -> None:
    sender = Sender()
    sender.send(1)
    feedback.begin(sender.state, sender.base("cluster-1"), 1)
    assert sender.owed() is None
    feedback.begin(sender.state, sender.base("cluster-0"), 1)
    assert sender.owed() is None
    assert feedback.kept(sender.state) == set()


def test_the_blobs_of_both_residuals_are_kept() -> None:
    sender = Sender()
    sender.send(1)
    feedback.settle(sender.state, 1, True)
    sender.send(2, (5.0, 0.77, 0.01))
    assert len(feedback.kept(sender.state)) == 2
    assert feedback.kept(sender.state) <= set(sender.blobs)


@pytest.mark.parametrize("encoding", ["float32", "float16"])
def test_other_encodings_owe_nothing(encoding: Encoding) -> None:
    sender = Sender(encoding)
    sender.send(1)
    feedback.begin(sender.state, sender.base(), 1)
    assert feedback.kept(sender.state) == set()


def test_a_step_without_a_finite_form_changes_nothing() -> None:
    sender = Sender()
    sender.send(1)
    feedback.settle(sender.state, 1, True)
    before = sender.owed()
    with pytest.raises(PartError):
        sender.send(2, (np.inf, 0.0, 0.0))
    np.testing.assert_array_equal(sender.owed(), before)
    assert sender.state.pending == {}


def test_a_role_that_an_update_did_not_have_is_still_owed_to() -> None:
    """A device or a site trains only the roles of the samples it has in a round."""
    state = feedback.Feedback(owed={"supervised": feedback.Residual("supervised", "a" * 64)})
    state.pending, state.round = {"unsupervised": feedback.Residual("unsupervised", "b" * 64)}, 4
    feedback.settle(state, 4, True)
    assert set(state.owed) == {"supervised", "unsupervised"}
    assert state.pending == {}
