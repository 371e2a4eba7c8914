from __future__ import annotations

import numpy as np
import pytest
import torch

from fedbac_edge.models.additive import Additive, dump, load, network
from fedbac_edge.models.catalog import LeNet

GRAY = LeNet()
RGB = LeNet(input_shape=(3, 32, 32))
WIDE = LeNet(input_shape=(3, 32, 32), widths=(8, 29, 144, 84))


@pytest.mark.parametrize(("model", "count"), [(GRAY, 44_426), (RGB, 62_006), (WIDE, 124_011)])
def test_the_torch_network_has_the_published_number_of_parameters(model: LeNet, count: int) -> None:
    assert sum(parameter.numel() for parameter in network(model).parameters()) == count


@pytest.mark.parametrize("model", [GRAY, RGB, WIDE, LeNet(input_shape=(1, 29, 33), classes=7)])
def test_state_dict_and_schema_agree_in_names_order_and_shapes(model: LeNet) -> None:
    state = {name: tuple(tensor.shape) for name, tensor in network(model).state_dict().items()}
    assert list(state.items()) == list(model.schema().items())


def test_a_part_survives_load_and_dump_bit_for_bit_and_shares_no_memory() -> None:
    part = GRAY.init(np.random.default_rng(1))
    module = network(GRAY)
    load(module, part)
    first = dump(module)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    assert all(np.array_equal(first[name], part[name]) for name in part)


def test_load_refuses_a_part_of_another_model() -> None:
    with pytest.raises(RuntimeError, match=r"conv1\.weight"):
        load(network(GRAY), RGB.init(np.random.default_rng(1)))


def test_logits_are_the_plain_sum_of_the_parts_logits() -> None:
    parts = {role: RGB.init(np.random.default_rng(i)) for i, role in enumerate(("global", "cluster", "own"))}
    x = torch.randn(5, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    expected = torch.zeros(5, 10)
    for part in parts.values():
        alone = network(RGB)
        load(alone, part)
        expected += alone(x)
    torch.testing.assert_close(Additive(RGB, parts)(x), expected)


def test_an_architecture_without_a_module_is_refused_by_name() -> None:
    class Unknown:
        pass

    with pytest.raises(TypeError, match="Unknown"):
        network(Unknown())  # type: ignore[arg-type]
