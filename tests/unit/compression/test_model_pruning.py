"""Structured pruning: the masked model, the smaller model and the bookkeeping between them."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils import parameters_to_vector

from compression.errors import CompressionError
from compression.graph import units
from compression.structured import alive, prune, scores, shrink
from harness.models import build


class Block(nn.Module):
    """A residual block written with calls instead of modules."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(6, 8, 3, padding=1)
        self.norm = nn.GroupNorm(4, 8)
        self.second = nn.Conv2d(8, 6, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.second(torch.tanh(self.norm(self.first(x)))))


class Flattened(nn.Module):
    """A forward pass that asks for shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.out = nn.Linear(4 * 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = nn.functional.max_pool2d(torch.relu(self.conv(x)), 2)
        return self.out(h.view(h.size(0), -1))


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(5, 10), nn.Tanh(), nn.Linear(10, 7, bias=False), nn.ReLU(), nn.Linear(7, 3)
    )


def cnn() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(2, 6, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 5, 3, padding=1), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(5 * 9, 8), nn.ReLU(), nn.Linear(8, 3)),
    )


def vgg() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(2, 8, 3, padding=1, bias=False), nn.GroupNorm(4, 8), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 12, 3, padding=1), nn.GroupNorm(12, 12, affine=False), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 3)),
    )


def resnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1), nn.ReLU(), Block(), Block(), nn.Flatten(), nn.Linear(6 * 64, 3)
    )


CASES = {
    "mlp": (mlp, (5,)),
    "cnn": (cnn, (2, 8, 8)),
    "vgg": (vgg, (2, 8, 8)),
    "resnet": (resnet, (2, 8, 8)),
    "flattened": (Flattened, (1, 6, 6)),
    "harness mlp": (lambda: build("mlp", (9,), 4, {"hidden": (12, 10), "activation": "tanh"}), (9,)),
    "harness fedreco_cnn": (lambda: build("fedreco_cnn", (1, 28, 28), 10, {"width": 16}), (1, 28, 28)),
    "harness fedsgda_cnn": (lambda: build("fedsgda_cnn", (1, 28, 28), 10), (1, 28, 28)),
    "harness fedavg_cnn": (lambda: build("fedavg_cnn", (1, 8, 8), 10, {"hidden": 16}), (1, 8, 8)),
    "harness vgg_small": (lambda: build("vgg_small", (3, 8, 8), 10, {"width": 0.5}), (3, 8, 8)),
    "harness vgg16": (lambda: build("vgg16", (3, 8, 8), 10, {"width": 0.125, "norm": "group"}), (3, 8, 8)),
    "harness resnet18": (lambda: build("resnet18", (3, 8, 8), 10, {"width": 0.125, "groups": 8}), (3, 8, 8)),
}


def drawn(module: nn.Module, seed: int = 0) -> Tensor:
    """Random parameters for every coordinate, so that no bias and no normalization is 0 or 1 by luck."""
    size = parameters_to_vector(module.parameters()).numel()
    return 0.3 * torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def run(module: nn.Module, x: Tensor, inputs: Tensor) -> Tensor:
    shapes = {name: parameter.shape for name, parameter in module.named_parameters()}
    pieces = x.split([shape.numel() for shape in shapes.values()])
    return functional_call(
        module, {n: p.view(s) for (n, s), p in zip(shapes.items(), pieces, strict=True)}, inputs
    )


def samples(shape: tuple[int, ...]) -> Tensor:
    return torch.randn(3, *shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize("ratio", [0.5, 0.75, 0.99])
@pytest.mark.parametrize("name", CASES)
def test_the_smaller_model_is_the_masked_model(name, ratio):
    make, shape = CASES[name]
    full = make()
    groups, x = units(full), drawn(full)
    mask = prune(x, groups, ratio)
    smaller, index = shrink(full, groups, mask)
    assert torch.equal(index, mask.nonzero().squeeze(1))
    assert len(index) == sum(p.numel() for p in smaller.parameters()) < len(x)
    expected = run(full, x * mask, samples(shape))
    torch.testing.assert_close(run(smaller, x[index], samples(shape)), expected, rtol=1e-9, atol=1e-9)
    assert (run(full, x, samples(shape)) - expected).abs().max() > 1e-6


@pytest.mark.parametrize("name", CASES)
def test_a_pruned_coordinate_has_no_gradient_in_the_masked_model(name):
    """So the model that trains on may forget about the mask, but for noise and decay."""
    make, shape = CASES[name]
    full = make()
    x = drawn(full)
    mask = prune(x, units(full), 0.5)
    start = (x * mask).requires_grad_()
    (gradient,) = torch.autograd.grad(run(full, start, samples(shape)).square().sum(), start)
    assert gradient[~mask].count_nonzero() == 0
    assert gradient[mask].count_nonzero() > 0


@pytest.mark.parametrize("name", CASES)
def test_the_smaller_model_can_be_pruned_in_its_turn(name):
    """Sizes recorded in the modules follow their tensors: the smaller model is a model like any other."""
    make, shape = CASES[name]
    full = make()
    groups = units(full)
    smaller, index = shrink(full, groups, prune(drawn(full), groups, 0.5))
    again = units(smaller)
    assert [(g.name, g.size) for g in again] == [(g.name, g.size - math.floor(g.size / 2)) for g in groups]
    for child in smaller.modules():
        if isinstance(child, nn.Linear):
            assert child.weight.shape == (child.out_features, child.in_features)
        if isinstance(child, nn.Conv2d):
            assert child.weight.shape[:2] == (child.out_channels, child.in_channels)
    assert run(smaller, drawn(full)[index], samples(shape)).shape[0] == 3


def test_units_by_hand():
    """Linear 2-3-1: the neurons' weights lie at 0 to 5, their biases at 6 to 8, their readers at 9 to 11.

    L1 scores are 1 + 2, 0 + 1 and 2 + 2; at ratio 0.34 floor(1.02) = 1 neuron goes, the second: weights 2 and
    3, bias 7, reader 10. The head's bias, 12, stays. The bias of 100 does not count.
    """
    module = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    x = torch.tensor([1.0, -2.0, 0.0, 1.0, 2.0, -2.0, 0.0, 100.0, 0.0, 5.0, 6.0, 7.0, 8.0])
    (group,) = units(module)
    assert (group.name, group.size) == ("0", 3)
    assert scores(x, group).tolist() == [3.0, 1.0, 4.0]
    mask = prune(x, [group], 0.34)
    assert (~mask).nonzero().flatten().tolist() == [2, 3, 7, 10]
    assert alive(mask, group).tolist() == [True, False, True]


@pytest.mark.parametrize(("ratio", "left"), [(0.0, 10), (0.25, 8), (0.29, 8), (0.3, 7), (0.99, 1)])
def test_ratios_are_floored_and_one_unit_stays(ratio, left):
    """Width 10: 10 * 0.25 = 2.5 removes 2, 10 * 0.3 = 3 removes 3, 10 * 0.99 = 9.9 removes 9."""
    module = mlp()
    groups = units(module)
    assert int(alive(prune(drawn(module), groups, ratio), groups[0]).sum()) == left


def test_what_was_pruned_stays_pruned():
    """Ratios 0.4, 0.2, 0.4, 0.6 prune in rounds 1 and 4 only, however the weights move in between."""
    module = mlp()
    groups = units(module)
    masks = []
    for t, ratio in enumerate((0.4, 0.2, 0.4, 0.6)):
        masks.append(prune(drawn(module, seed=t), groups, ratio, masks[-1] if masks else None))
    assert [int(alive(mask, groups[0]).sum()) for mask in masks] == [6, 6, 6, 4]
    assert torch.equal(masks[0], masks[1]) and torch.equal(masks[0], masks[2])
    assert not (masks[3] & ~masks[0]).any()


def test_a_living_unit_without_weights_outlives_the_dead():
    """All survivors score 0 like the dead; the second cut must still take exactly one of the survivors."""
    module = mlp()
    groups = units(module)
    first = prune(drawn(module), groups, 0.5)
    second = prune(torch.zeros_like(drawn(module)), groups, 0.6, first)
    assert [int(alive(mask, groups[0]).sum()) for mask in (first, second)] == [5, 4]
    assert not (second & ~first).any()


def test_several_models_are_pruned_apart():
    module = cnn()
    groups, rows = units(module), torch.stack([drawn(module, s) for s in range(3)])
    masks = prune(rows, groups, 0.5)
    assert all(torch.equal(mask, prune(row, groups, 0.5)) for mask, row in zip(masks, rows, strict=True))
    assert torch.equal(prune(rows, groups, 0.7, masks)[2], prune(rows[2], groups, 0.7, masks[2]))


def test_a_normalized_group_of_channels_is_one_unit():
    """8 channels in 4 groups, then 12 channels each normalized alone."""
    assert [(g.name, g.size, g.norms) for g in units(vgg())] == [("0", 4, ("1",)), ("4", 12, ("5",))]


def test_only_inner_channels_of_residual_blocks_are_prunable():
    assert [g.name for g in units(resnet())] == ["2.first", "3.first"]
    groups = units(build("resnet18", (3, 16, 16), 10, {"width": 0.125}))
    assert len(groups) == 8 and all(g.name.endswith("main.0") for g in groups)


def test_the_output_layer_stays_whole():
    assert [g.name for g in units(cnn())] == ["0", "3", "6"]


def test_a_model_without_hidden_units_has_nothing_to_prune():
    logistic = build("logistic", (1, 4, 4), 3)
    assert units(logistic) == []
    assert prune(drawn(logistic), [], 0.5).all()
    with pytest.raises(CompressionError, match="in \\[0, 1\\)"):
        prune(drawn(logistic), [], 1.0)


@pytest.mark.parametrize(
    ("between", "what"),
    [
        (nn.Sigmoid(), "Sigmoid"),
        (nn.LayerNorm(4), "LayerNorm"),
        (nn.Softmax(-1), "Softmax"),
        (nn.Sequential(nn.ReLU(), nn.Flatten(0)), "Flatten"),
    ],
)
def test_what_revives_or_mixes_zeros_is_refused(between, what):
    with pytest.raises(CompressionError, match=f"{what} behind it does not map zero to zero"):
        units(nn.Sequential(nn.Linear(3, 4), between, nn.Linear(4, 2)))


def test_what_comes_after_the_last_layer_does_not_matter():
    assert len(units(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2), nn.Sigmoid()))) == 1


def test_repeated_and_grouped_layers_stay_whole():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before, self.repeated = nn.Linear(3, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.repeated(torch.relu(self.repeated(torch.relu(self.before(x)))))

    assert units(Twice()) == []
    depthwise = nn.Conv2d(4, 4, 3, groups=4)
    assert units(nn.Sequential(nn.Conv2d(1, 4, 3), depthwise, nn.Conv2d(4, 2, 3))) == []


def test_shared_parameters_are_refused():
    module = mlp()
    module[4] = nn.Linear(10, 5)
    module[4].bias = module[0].bias
    with pytest.raises(CompressionError, match="share parameters"):
        units(module)


def test_an_image_read_without_flattening_is_refused():
    """A linear layer on (B, 4, 6, 6) reads columns of pixels, not channels."""
    with pytest.raises(CompressionError, match="cannot see how '1' reads"):
        units(nn.Sequential(nn.Conv2d(1, 4, 3), nn.Linear(6, 2)))


def test_a_forward_pass_with_branches_is_refused():
    class Branching(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if x.sum() > 0 else -x

    with pytest.raises(CompressionError, match="cannot trace the forward pass of Branching"):
        units(Branching())


def test_only_masks_of_whole_units_can_be_shrunk_to():
    module = mlp()
    groups = units(module)
    mask = torch.ones_like(drawn(module), dtype=torch.bool)
    with pytest.raises(CompressionError, match="leaves no unit in layer '0'"):
        shrink(module, groups, ~mask)
    mask[0] = False
    with pytest.raises(CompressionError, match="parts of units"):
        shrink(module, groups, mask)


def test_shrinking_leaves_the_full_model_alone():
    module = mlp()
    before = parameters_to_vector(module.parameters()).clone()
    shrink(module, units(module), prune(before, units(module), 0.5))
    assert torch.equal(parameters_to_vector(module.parameters()), before)
