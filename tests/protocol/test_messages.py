"""Every message type that exists, filled with whatever its types allow, survives the wire."""

from __future__ import annotations

import math
import types
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import inspect

from broker.wire import WireError, decode, encode
from fedbac_edge.protocol import messages
from fedbac_edge.protocol.messages import (
    DeviceUpdate,
    GatewayTask,
    GatewayUpdate,
    Message,
    Receipt,
    Spec,
    Traffic,
)
from fedbac_edge.settings.federation import Federation, HassleTable, ModelTable
from fedbac_edge.vocabulary import terms
from fedbac_edge.vocabulary.terms import Score
from fedbac_edge.vocabulary.training import LocalTraining

HEX: dict[str | None, int] = {rf"^[0-9a-f]{{{digits}}}\Z": digits for digits in (8, 64, 128)}
"""Patterns of hashes and the like -> their digits; drawing from the pattern itself is slow."""


def strategy(kind: inspect.Type) -> st.SearchStrategy[Any]:
    """Values of a type, within its bounds, from what msgspec knows of it."""
    match kind:
        case inspect.IntType(ge=low, le=high):
            return st.integers(low or 0, 2**53 if high is None else high)
        case inspect.FloatType(gt=above, ge=low, lt=below, le=high):
            least = low if above is None else above
            most = high if below is None else below
            return st.floats(
                least,
                most,
                exclude_min=above is not None,
                exclude_max=below is not None,
                allow_nan=False,
                allow_infinity=most is None and least is None,
            )
        case inspect.StrType(pattern=pattern) if pattern in HEX:
            return st.binary(min_size=HEX[pattern] // 2, max_size=HEX[pattern] // 2).map(bytes.hex)
        case inspect.StrType(min_length=least, max_length=most):
            return st.text(min_size=least or 0, max_size=min(most or 20, 20))
        case inspect.BytesType(min_length=least, max_length=most):
            return st.binary(min_size=least or 0, max_size=min(most or 99, 99))
        case inspect.BoolType():
            return st.booleans()
        case inspect.NoneType():
            return st.none()
        case inspect.LiteralType(values=values):
            return st.sampled_from(values)
        case inspect.UnionType(types=kinds):
            return st.one_of(*map(strategy, kinds))
        case inspect.DictType(key_type=key, value_type=value):
            return st.dictionaries(strategy(key), strategy(value), max_size=3)
        case inspect.VarTupleType(item_type=item):
            return st.lists(strategy(item), max_size=3).map(tuple)
        case inspect.TupleType(item_types=items):
            return st.tuples(*map(strategy, items))
        case inspect.ListType(item_type=item):
            return st.lists(strategy(item), max_size=3)
        case inspect.StructType(cls=cls, fields=fields):
            drawn = {field.name: strategy(field.type) for field in fields}
            chosen = st.fixed_dictionaries(drawn).filter(lambda values: is_possible(cls, values))
            return chosen.map(lambda values: cls(**values))
    raise NotImplementedError(kind)


def is_possible(kind: type, values: dict[str, Any]) -> bool:
    """False for combinations that the type itself refuses, such as more turns than epochs."""
    try:
        kind(**values)
    except ValueError:
        return False
    return True


def subclasses(kind: type[Message]) -> list[type[Message]]:
    below = [each for child in kind.__subclasses__() for each in subclasses(child)]
    return [*(child for child in kind.__subclasses__()), *below]


MESSAGES = sorted(set(subclasses(Message)), key=lambda kind: kind.__name__)


def test_the_list_is_complete_and_no_two_share_a_tag() -> None:
    assert len(MESSAGES) >= 14
    tags = [kind.__struct_config__.tag for kind in MESSAGES]
    assert len(set(tags)) == len(tags)
    assert all(kind.__struct_config__.forbid_unknown_fields for kind in MESSAGES)


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_round_trip(kind: type[Message], data: st.DataObject) -> None:
    message = data.draw(strategy(inspect.type_info(kind)))
    payload = encode(message)
    assert decode(payload, *MESSAGES) == message
    assert encode(decode(payload, kind)) == payload
    others = [other for other in MESSAGES if other is not kind]
    with pytest.raises(WireError):
        decode(payload, *others)


def plain(message: Message) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(message, builtin_types=(bytes,))
    return fields


def wired(fields: dict[str, Any]) -> bytes:
    return msgspec.msgpack.encode({"v": 1, "m": fields})


UPDATE = DeviceUpdate(
    instance="0badcafe",
    device="d1",
    round=1,
    base={},
    parts={},
    samples=1,
    data=1,
    loss=1.0,
    holdout=Score(1, 1, 1.0),
    previous=None,
    received=0,
    seconds=1.0,
)
TASK = GatewayTask(
    instance="0badcafe",
    round=1,
    cluster=0,
    parts={},
    previous={},
    training=LocalTraining(
        epochs=1, batch_size=8, learning_rate=0.1, momentum=0.9, weight_decay=0.0, clip_norm=1.0, l2={}
    ),
    deadline_s=1.0,
)
SITE = GatewayUpdate(
    instance="0badcafe",
    round=1,
    parts={},
    samples=5,
    data=9,
    holdout=Score(1, 1, 1.0),
    asked=1,
    answered=1,
    refused=0,
    traffic=Traffic(),
    seconds=1.0,
    waited=0.0,
)
DESCRIBED = Federation(name="t", model=ModelTable(classes=("a", "b")))


@pytest.mark.parametrize("message", [UPDATE, TASK, Receipt(kind="train", round=1, accepted=True)])
def test_an_unknown_or_missing_field_is_refused(message: Message) -> None:
    fields = plain(message)
    assert decode(wired(fields), type(message)) == message
    with pytest.raises(WireError, match="unknown field"):
        decode(wired({**fields, "more": 1}), type(message))
    required = {field.name for field in msgspec.structs.fields(type(message)) if field.required}
    for name in required:
        with pytest.raises(WireError, match="missing required field"):
            decode(wired({key: value for key, value in fields.items() if key != name}), type(message))


@pytest.mark.parametrize(
    ("message", "change"),
    [
        (UPDATE, {"round": -1}),
        (UPDATE, {"round": 1.0}),
        (UPDATE, {"samples": 10**12 + 1}),
        (UPDATE, {"instance": "0BADCAFE"}),
        (UPDATE, {"base": {"global": "z" * 64}}),
        (UPDATE, {"base": {"global": "0" * 64 + "\n"}}),
        (UPDATE, {"instance": "0badcafe\n"}),
        (UPDATE, {"base": {"": "0" * 64}}),
        (UPDATE, {"device": "x" * 97}),
        (UPDATE, {"parts": {"global": "text"}}),
        (UPDATE, {"seconds": math.nan}),
        (UPDATE, {"seconds": math.inf}),
        (UPDATE, {"holdout": {"count": -1, "correct": 0, "loss": 0.0}}),
        (UPDATE, {"holdout": None}),
        (TASK, {"deadline_s": math.nan}),
        (TASK, {"deadline_s": -1.0}),
        (TASK, {"deadline_s": 1e10}),
        (TASK, {"parts": {"global": {"name": "global", "hash": "0" * 63, "size": 1}}}),
        (TASK, {"training": {}}),
    ],
)
def test_values_out_of_range_are_refused(message: Message, change: dict[str, Any]) -> None:
    with pytest.raises(WireError):
        decode(wired({**plain(message), **change}), type(message))


def test_numbers_that_training_cannot_be_done_with_are_refused() -> None:
    for name in ("learning_rate", "clip_norm", "momentum", "weight_decay"):
        for value in (math.nan, math.inf, -1.0):
            fields = plain(TASK)
            fields["training"] = {**fields["training"], name: value}
            with pytest.raises(WireError):
                decode(wired(fields), GatewayTask)


def test_a_loss_that_is_no_number_arrives_so_that_it_can_be_refused_with_a_receipt() -> None:
    sick = msgspec.structs.replace(UPDATE, loss=math.nan, holdout=Score(1, 1, math.inf))
    found = decode(encode(sick), DeviceUpdate)
    assert math.isnan(found.loss)
    assert found.holdout.loss == math.inf


def test_scores_add_up() -> None:
    total = Score(10, 5, 20.0) + Score(30, 10, 20.0)
    assert (total.accuracy, total.mean_loss) == (15 / 40, 1.0)
    assert terms.NO_SCORE.accuracy == 0.0
    assert math.isnan(terms.NO_SCORE.mean_loss)


def test_this_module_knows_no_tier() -> None:
    """Messages are plain values: no module of a tier is reachable from theirs."""
    modules = {name for name, value in vars(messages).items() if isinstance(value, types.ModuleType)}
    assert modules <= {"msgspec", "annotations"}


@pytest.mark.parametrize(
    ("message", "version"),
    [
        (UPDATE, 1),
        (msgspec.structs.replace(UPDATE, unlabelled=1), 2),
        (TASK, 1),
        (SITE, 1),
        (msgspec.structs.replace(SITE, unlabelled_data=3), 2),
        (Spec(federation=DESCRIBED, instance="0badcafe", software=""), 1),
        (
            Spec(
                federation=msgspec.structs.replace(DESCRIBED, hassle=HassleTable()),
                instance="0badcafe",
                software="",
            ),
            2,
        ),
    ],
)
def test_only_what_version_1_has_no_words_for_is_written_in_version_2(message: Message, version: int) -> None:
    """Fleets without HASSLE go on beside software that knows version 1 alone."""
    payload = encode(message)
    written = msgspec.msgpack.decode(payload)
    assert written["v"] == version
    new = {"unlabelled", "unlabelled_data", "hassle"} & {*written["m"], *written["m"].get("federation", {})}
    assert (version == 2) == bool(new)
    assert decode(payload, type(message)) == message


VERSION_1 = {
    "method": "cloud_weight cluster_start clusters initial name",
    "training": "backend batch_size clip_norm cluster_l2 epochs learning_rate learning_rate_decay "
    "learning_rate_floor momentum threads weight_decay",
    "assignment": "alpha arms every live_counts margin method reward",
    "selection": "credit method participation warm_up",
    "wire": "encoding",
    "releases": "every key",
}
"""Tables of the specification -> their settings, as software that knows version 1 alone has them."""


def test_a_specification_in_version_1_has_no_setting_that_it_did_not_have() -> None:
    """Whoever adds a setting says in broker.versions what its absence means, or raises the version."""
    written = msgspec.msgpack.decode(encode(Spec(federation=DESCRIBED, instance="0badcafe", software="")))
    tables = written["m"]["federation"]
    assert written["v"] == 1
    assert {name: " ".join(sorted(tables[name])) for name in VERSION_1} == VERSION_1
    assert set(tables) - set(VERSION_1) == {
        *("name", "seed", "rounds", "eligibility", "evaluation", "model", "deadlines", "robust", "gateways")
    }


def test_a_later_setting_of_hassle_is_silent_at_its_default_and_refused_by_name_otherwise() -> None:
    """Software of the first days of version 2 has no `pairing`: it reads the default, and nothing else."""
    known = [field for field in msgspec.structs.fields(HassleTable) if field.name != "pairing"]
    older = msgspec.defstruct(
        "Older", [(field.name, field.type, field.default) for field in known], forbid_unknown_fields=True
    )

    def written(table: HassleTable) -> dict[str, Any]:
        federation = msgspec.structs.replace(DESCRIBED, hassle=table)
        payload = encode(Spec(federation=federation, instance="0badcafe", software=""))
        assert decode(payload, Spec).federation == federation
        envelope = msgspec.msgpack.decode(payload)
        assert envelope["v"] == 2
        found: dict[str, Any] = envelope["m"]["federation"]["hassle"]
        return found

    assert set(written(HassleTable())) == {field.name for field in known}
    assert msgspec.convert(written(HassleTable(gamma=0.5)), older) == older(gamma=0.5)
    with pytest.raises(msgspec.ValidationError, match="unknown field `pairing`"):
        msgspec.convert(written(HassleTable(pairing="paper")), older)


@pytest.mark.parametrize(
    ("table", "change"),
    [
        ("training", {"unlabelled": "pseudo"}),
        ("training", {"confidence": 0.9}),
        ("method", {"places": {"gw1": 1}}),
        ("assignment", {"method": "merge"}),
        ("assignment", {"moves": False}),
    ],
)
def test_a_new_setting_that_says_something_is_written_in_version_2(
    table: str, change: dict[str, Any]
) -> None:
    changed = msgspec.structs.replace(getattr(DESCRIBED, table), **change)
    federation = msgspec.structs.replace(DESCRIBED, **{table: changed})
    spec = Spec(federation=federation, instance="0badcafe", software="")
    payload = encode(spec)
    assert msgspec.msgpack.decode(payload)["v"] == 2
    assert decode(payload, Spec) == spec
