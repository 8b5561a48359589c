"""A module as a function of one flat vector computes what the module computes."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from harness import models
from harness.core import rng
from harness.core.flat_model import Ravel, traits_of

SHAPES = {
    "logistic": (7,),
    "mlp": (7,),
    "resnet18": (3, 16, 16),
    "vgg_small": (3, 32, 32),
    "fedreco_cnn": (1, 28, 28),
}
SMALL = {
    "resnet18": {"width": 0.1},
    "vgg_small": {"width": 0.1},
    "fedreco_cnn": {"width": 16},
}


def built(name, outputs=3):
    return models.build(name, SHAPES[name], outputs, SMALL.get(name, {}))


def split(ravel, x):
    """Cut a vector by hand in the order of the module's parameters."""
    found, first = {}, 0
    for name, parameter in ravel.module.named_parameters():
        found[name] = x[first : first + parameter.numel()].view(parameter.shape)
        first += parameter.numel()
    assert first == len(x)
    return found


@pytest.mark.parametrize("name", SHAPES)
def test_the_vector_is_the_modules_parameters_end_to_end(name):
    """Load the pieces into the module itself: same outputs."""
    module = built(name)
    ravel = Ravel(module)
    x = ravel.init(rng.stream(0, "start"))
    assert x.shape == (ravel.size,) == (sum(p.numel() for p in module.parameters()),)
    inputs = torch.randn(4, *SHAPES[name], generator=rng.stream(1, "inputs"))
    module.load_state_dict(split(ravel, x))
    assert torch.allclose(ravel(x, inputs), module(inputs), atol=1e-5)
    for key, piece in ravel.parameters(x).items():
        assert torch.equal(piece, split(ravel, x)[key])


@pytest.mark.parametrize("name", SHAPES)
def test_initial_values_are_float32_and_follow_the_stream(name):
    ravel = Ravel(built(name))
    first, again = (ravel.init(rng.stream(5, "start")) for _ in range(2))
    assert first.dtype == torch.float32
    assert torch.equal(first, again)
    assert not torch.equal(first, ravel.init(rng.stream(6, "start")))
    assert bool(torch.isfinite(first).all())


def test_the_modules_own_values_are_never_used():
    ravel = Ravel(built("mlp"))
    x, inputs = ravel.init(rng.stream(0, "start")), torch.ones(2, 7)
    before = ravel(x, inputs)
    with torch.no_grad():
        for parameter in ravel.module.parameters():
            parameter.fill_(float("nan"))
    assert torch.equal(ravel(x, inputs), before)
    assert torch.equal(ravel.init(rng.stream(0, "start")), x)


def test_default_initialization_is_bounded_by_the_inputs():
    """16 inputs: all of weight and bias in [-.25, .25], and both ends nearly reached."""
    x = Ravel(nn.Linear(16, 200)).init(rng.stream(0, "start"))
    assert 0.24 < float(x.abs().max()) <= 0.25
    assert abs(float(x.std()) - 0.25 / 3**0.5) < 0.01


def test_xavier_and_kaiming_initializations_have_their_variances():
    """Xavier: 2 / (in + out) = 2 / 500, biases 1 / out; Kaiming: 2 / in = 2 / 300, biases 0."""
    for rule, variance, bias in (("xavier", 2 / 500, 1 / 200), ("kaiming", 2 / 300, 0.0)):
        module = nn.Linear(300, 200)
        traits_of(module).initializer = rule
        ravel = Ravel(module)
        found = ravel.parameters(ravel.init(rng.stream(0, "start")))
        assert float(found["weight"].var()) == pytest.approx(variance, rel=0.03)
        assert bool((found["bias"] == bias).all())


def test_norm_layers_start_as_the_identity():
    ravel = Ravel(nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4)))
    found = ravel.parameters(ravel.init(rng.stream(0, "start")))
    assert bool((found["1.weight"] == 1).all())
    assert bool((found["1.bias"] == 0).all())


@settings(max_examples=10, deadline=None)
@given(widths=st.lists(st.integers(1, 6), min_size=1, max_size=3))
def test_segments_name_every_parameter_once(widths):
    layers = [nn.Linear(a, b) for a, b in zip([3, *widths], [*widths, 2], strict=True)]
    ravel = Ravel(nn.Sequential(*layers))
    whole = torch.cat([ravel.segment(f"{number}.*") for number in range(len(layers))])
    assert torch.equal(whole, torch.arange(ravel.size))
    assert torch.equal(ravel.segment("*"), torch.arange(ravel.size))
    biases = ravel.segment("*.bias")
    assert len(biases) == sum(layer.out_features for layer in layers)


def test_a_segment_of_the_head_is_the_head():
    ravel = Ravel(built("mlp"))
    x = torch.arange(ravel.size, dtype=torch.float32)
    head = [piece.flatten() for name, piece in ravel.parameters(x).items() if name.startswith("head.")]
    assert torch.equal(x[ravel.segment("head.*")], torch.cat(head))


def test_an_unknown_segment_is_an_error_naming_the_others():
    with pytest.raises(ValueError, match=r"hed.*the model has.*head\.weight"):
        Ravel(built("logistic")).segment("hed.*")


def test_batch_norm_is_refused():
    with pytest.raises(ValueError, match="group norm"):
        Ravel(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))


def test_a_layer_without_a_rule_is_refused():
    with pytest.raises(ValueError, match="Bilinear"):
        Ravel(nn.Bilinear(2, 2, 2)).init(rng.stream(0, "start"))


def test_filters_of_one_pixel_have_right_gradients_inside_vmap():
    """Strides of channels-last, which are another name of the same memory there, let torch compute wrong ones."""
    layers = [nn.Conv2d(3, 6, 3, stride=2), nn.Tanh(), nn.Conv2d(6, 4, 1), nn.Tanh(), nn.AdaptiveAvgPool2d(1)]
    ravel = Ravel(nn.Sequential(*layers, nn.Flatten()))
    points = torch.stack([ravel.init(torch.Generator().manual_seed(seed)) for seed in (0, 1)])
    images = torch.randn(2, 1, 3, 16, 16, generator=torch.Generator().manual_seed(2))
    slope = torch.func.grad(lambda x, image: ravel(x, image).square().sum())
    single = torch.stack([slope(x, image) for x, image in zip(points, images, strict=True)])
    assert torch.allclose(torch.func.vmap(slope)(points, images), single, atol=1e-6)
