"""The networks: sizes published by the papers, structure the rest of the harness relies on, and errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn import functional as F

from harness.core.errors import UserError
from harness.core.execution.exact.row_product import Linear
from harness.core.execution.memory import Room
from harness.models import Net, build, describe, names, registry
from harness.models.networks import Residual

FMNIST, CIFAR, QUADRANT, TINY = (1, 28, 28), (3, 32, 32), (3, 16, 16), (3, 64, 64)

# Every model with every branch of its builder, small enough for double precision on one core.
SMALL: list[tuple[str, tuple[int, ...], dict[str, object]]] = [
    ("logistic", (5,), {}),
    ("logistic", (2, 3, 3), {}),
    ("mlp", (5,), {"hidden": [4, 3], "activation": "tanh"}),
    ("mlp", (1, 3, 3), {"hidden": []}),
    ("fedreco_cnn", (1, 16, 16), {"width": 6}),
    ("fedreco_cnn", (2, 17, 16), {"channels": [2, 3], "width": 6}),
    ("fedsgda_cnn", (1, 10, 11), {}),
    ("fedsgda_cnn", (3, 8, 8), {}),
    ("fedavg_cnn", (1, 4, 5), {"hidden": 6}),
    ("vgg16", (3, 8, 8), {"width": 0.02}),
    ("vgg_small", (1, 8, 8), {"width": 0.25, "norm": "group"}),
    ("resnet18", (1, 8, 8), {"width": 0.07}),
    ("resnet18", (1, 8, 8), {"width": 0.005}),  # channels 1, 1, 1, 3: halves the map at equal width
    ("resnet18", (1, 65, 9), {"width": 0.05, "groups": 3}),
    ("transformer", (6, 1), {"width": 8, "heads": 2, "blocks": 2}),
]
small = pytest.mark.parametrize(("name", "shape", "settings"), SMALL)


def sizes(
    name: str, shape: tuple[int, ...], outputs: int, settings: Mapping[str, object] = {}
) -> tuple[int, int]:
    """Return the numbers of parameters of extractor and head; on the meta device nothing is allocated."""
    with torch.device("meta"):
        net = build(name, shape, outputs, settings)
    return sum(p.numel() for p in net.extractor.parameters()), sum(p.numel() for p in net.head.parameters())


def random_double(name: str, shape: tuple[int, ...], settings: Mapping[str, object], seed: int) -> Net:
    """Return the three-output model in double precision, drawn so that signals keep their scale."""
    net = build(name, shape, 3, settings).double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in net.parameters():
            spread = (2 / p[0].numel()) ** 0.5
            p.copy_(spread * torch.randn(p.shape, generator=generator, dtype=p.dtype))
    return net


def inputs(shape: tuple[int, ...], *leading: int) -> Tensor:
    if len(shape) == 2:  # a text of the models' three symbols
        codes = torch.randint(3, (*leading, *shape), generator=torch.Generator().manual_seed(99))
        return codes.double()
    return torch.randn(*leading, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(99))


def test_fedreco_cnn_has_the_sizes_of_the_released_code() -> None:
    """Check extractor and head.

    One channel, 28 -> 24 -> 12 -> 8 -> 4 pixels: 4*(25+1) + 12*(4*25+1) + 1024*(12*16+1) + 1024*1025
    = 104 + 1,212 + 197,632 + 1,049,600 = 1,248,548. Three channels, 32 -> 28 -> 14 -> 10 -> 5 pixels:
    64*(3*25+1) + 64*(64*25+1) + 1024*(64*25+1) + 1024*1025 = 4,864 + 102,464 + 1,639,424 + 1,049,600
    = 2,796,352. Head: 10*1025.
    """
    assert sizes("fedreco_cnn", FMNIST, 10) == (1_248_548, 10_250)
    assert sizes("fedreco_cnn", CIFAR, 10) == (2_796_352, 10_250)


@pytest.mark.parametrize(
    ("shape", "outputs", "total"),
    [(FMNIST, 10, 26_620), (FMNIST, 1, 25_711), (CIFAR, 10, 581_866), (CIFAR, 1, 581_281)],
)
def test_fedsgda_cnn_has_the_sizes_of_the_papers_tables(
    shape: tuple[int, ...], outputs: int, total: int
) -> None:
    """Check totals.

    FashionMNIST, 28 -> 26 -> 13 -> 11 -> 5 pixels: 5*10 + 10*(45+1) + 100*(250+1) + 10*101 = 26,620.
    CIFAR-10, 32 -> 16 -> 8 -> 4 pixels: 448 + 4,640 + 18,496 + 512*1025 + 64*513 + 10*65 = 581,866.
    """
    assert sum(sizes("fedsgda_cnn", shape, outputs)) == total


@pytest.mark.parametrize(
    ("name", "shape", "outputs", "settings", "total"),
    [
        ("logistic", (105,), 2, {}, 212),
        ("logistic", FMNIST, 10, {}, 7_850),
        ("mlp", (20,), 10, {"hidden": (64, 64)}, 6_154),
        ("mlp", (784,), 10, {"hidden": [200]}, 159_010),
        ("fedavg_cnn", FMNIST, 10, {"hidden": 512}, 1_663_370),  # McMahan et al. 2017
        ("fedavg_cnn", FMNIST, 10, {}, 832 + 51_264 + 1024 * 3137 + 10 * 1025),
        ("vgg16", CIFAR, 10, {}, 14_714_688 + 5_130),  # the convolutions of VGG16 and 10 * 513
        ("vgg_small", QUADRANT, 10, {}, 448 + 4_640 + 18_496 + 650),
        ("vgg_small", QUADRANT, 10, {"norm": "group"}, 448 + 4_640 + 18_496 + 650 + 112),  # -112 biases, +224
        (
            "resnet18",
            CIFAR,
            10,
            {},
            11_173_962,
        ),  # as with batch normalization, whose scale and shift count the same
        ("resnet18", TINY, 200, {}, 11_173_962 + 190 * 513),  # a real 200-way head
        ("resnet18", (3, 224, 224), 1000, {}, 11_689_512),  # the ImageNet model
    ],
)
def test_known_networks_have_their_published_sizes(
    name: str, shape: tuple[int, ...], outputs: int, settings: Mapping[str, object], total: int
) -> None:
    assert sum(sizes(name, shape, outputs, settings)) == total


@pytest.mark.parametrize(
    ("name", "width", "embedding"),
    [
        ("vgg16", 1, 512),
        ("vgg16", 0.25, 128),
        ("vgg16", 1e-9, 1),
        ("vgg_small", 1.0, 64),
        ("resnet18", 0.5, 256),
    ],
)
def test_width_scales_the_embedding_down_to_one_channel_at_least(
    name: str, width: float, embedding: int
) -> None:
    with torch.device("meta"):
        assert build(name, QUADRANT, 10, {"width": width}).embedding_size == embedding


@pytest.mark.parametrize(("side", "poolings"), [(1, 0), (3, 1), (8, 3), (16, 4), (31, 4), (32, 5), (224, 5)])
def test_vgg16_drops_the_trailing_poolings_that_do_not_fit(side: int, poolings: int) -> None:
    """Each pooling halves the side, rounding down, and needs two pixels; there are five at most."""
    with torch.device("meta"):
        net = build("vgg16", (3, side, 2 * side), 10)
        assert net(torch.empty(2, 3, side, 2 * side)).shape == (2, 10)
    assert sum(isinstance(layer, nn.MaxPool2d) for layer in net.modules()) == poolings


@pytest.mark.parametrize(("side", "map_side"), [(64, 8), (65, 3)])
def test_resnet18_has_the_strided_stem_above_64_pixels_only(side: int, map_side: int) -> None:
    """Three halvings without it: 64 -> 8. Five with it, rounding up: 65 -> 33 -> 17 -> 9 -> 5 -> 3."""
    with torch.device("meta"):
        net = build("resnet18", (3, side, side), 10)
        assert isinstance(net.extractor, nn.Sequential)
        assert net.extractor[:-2](torch.empty(1, 3, side, side)).shape == (1, 512, map_side, map_side)


@small
def test_outputs_are_the_head_of_the_features(
    name: str, shape: tuple[int, ...], settings: Mapping[str, object]
) -> None:
    net, x = random_double(name, shape, settings, seed=0), inputs(shape, 4)
    features = net.features(x)
    assert features.shape == (4, net.embedding_size)
    assert net(x).shape == (4, 3)
    assert torch.allclose(net(x), F.linear(features, net.head.weight, net.head.bias), rtol=1e-12)
    assert net(x).std(0).min() > 1e-6, "the outputs must depend on the input"


@small
def test_all_state_is_parameters_of_extractor_or_head(
    name: str, shape: tuple[int, ...], settings: Mapping[str, object]
) -> None:
    net = build(name, shape, 3, settings)
    assert {key.split(".")[0] for key, _ in net.named_parameters()} <= {"extractor", "head"}
    assert [key for key, _ in net.named_parameters() if key.startswith("head.")] == [
        "head.weight",
        "head.bias",
    ]
    assert not list(net.buffers())


@small
def test_parameters_belong_to_standard_layers(
    name: str, shape: tuple[int, ...], settings: Mapping[str, object]
) -> None:
    net = build(name, shape, 3, settings)
    for part in net.extractor.modules():
        if list(part.parameters(recurse=False)):
            assert type(part) is Linear or type(part).__module__.startswith("torch.nn.")


@small
def test_stacked_models_equal_one_after_another(
    name: str, shape: tuple[int, ...], settings: Mapping[str, object]
) -> None:
    """The loss and its gradient, for three clients with their own parameters and inputs: vmap = loop."""
    nets, x = [random_double(name, shape, settings, seed) for seed in range(3)], inputs(shape, 3, 4)
    y = torch.tensor([0, 1, 2, 0])

    def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(nets[0], parameters, (x,)), y)

    stacked, _ = stack_module_state(nets)
    rows = vmap(grad(loss))(stacked, x)
    for i, net in enumerate(nets):
        apart = torch.autograd.grad(F.cross_entropy(net(x[i]), y), list(net.parameters()))
        for (key, _), expected in zip(net.named_parameters(), apart, strict=True):
            torch.testing.assert_close(rows[key][i], expected, rtol=1e-9, atol=1e-11)


@small
def test_models_do_not_touch_the_global_random_stream(
    name: str, shape: tuple[int, ...], settings: Mapping[str, object]
) -> None:
    before = torch.get_rng_state()
    net = build(name, shape, 3, settings).double()
    x = inputs(shape, 2)
    assert torch.equal(net.train()(x), net.eval()(x))
    assert torch.equal(torch.get_rng_state(), before)


def test_the_fashion_mnist_net_has_the_papers_layers() -> None:
    """Write the forward pass of FedSGDA's Table 3 out by hand: the activation precedes the pooling."""
    net, x = random_double("fedsgda_cnn", FMNIST, {}, seed=1), inputs(FMNIST, 2)
    w1, b1, w2, b2, w3, b3, w4, b4 = net.parameters()
    h = F.max_pool2d(torch.tanh(F.conv2d(x, w1, b1)), 2)
    h = F.max_pool2d(torch.tanh(F.conv2d(h, w2, b2)), 2)
    torch.testing.assert_close(net(x), F.linear(torch.tanh(F.linear(h.flatten(1), w3, b3)), w4, b4))


def test_layers_of_the_small_vgg_come_in_order() -> None:
    """Write it out by hand: pooling and ReLU commute; the 2 x 2 map that is left is averaged."""
    net, x = random_double("vgg_small", QUADRANT, {}, seed=1), inputs(QUADRANT, 2)
    *convolutions, w, b = net.parameters()
    h = x
    for weight, bias in zip(convolutions[::2], convolutions[1::2], strict=True):
        h = F.max_pool2d(F.conv2d(h, weight, bias, padding=1).relu(), 2)
    torch.testing.assert_close(net(x), F.linear(h.mean((2, 3)), w, b))


@pytest.mark.parametrize(("activation", "function"), [("relu", torch.relu), ("tanh", torch.tanh)])
def test_mlp_applies_the_activation_asked_for(activation: str, function: Callable[[Tensor], Tensor]) -> None:
    net, x = random_double("mlp", (5,), {"activation": activation}, seed=1), inputs((5,), 2)
    w1, b1, w2, b2 = net.parameters()
    torch.testing.assert_close(net(x), F.linear(function(F.linear(x, w1, b1)), w2, b2))


def test_a_residual_block_normalizes_before_each_activation() -> None:
    """Write out by hand a block that halves the map; its shortcut is a 1 x 1 convolution with stride 2."""
    net = random_double("resnet18", (1, 8, 8), {"width": 0.07}, seed=2)
    block = next(m for m in net.modules() if isinstance(m, Residual) and len(m.shortcut))
    w1, s1, t1, w2, s2, t2, w3, s3, t3 = block.parameters()
    x = inputs((4, 8, 8), 2)
    h = F.group_norm(F.conv2d(x, w1, stride=2, padding=1), 1, s1, t1).relu()
    h = F.group_norm(F.conv2d(h, w2, padding=1), 1, s2, t2)
    expected = (h + F.group_norm(F.conv2d(x, w3, stride=2), 1, s3, t3)).relu()
    torch.testing.assert_close(block(x), expected)


def test_a_residual_block_passes_its_input_on() -> None:
    """With the last normalization's scale and shift at zero the block is ``relu(0 + x) = relu(x)``."""
    net = random_double("resnet18", (1, 8, 8), {"width": 0.07}, seed=2)
    block = next(m for m in net.modules() if isinstance(m, Residual))
    norm = block.main[-1]
    assert isinstance(norm, nn.GroupNorm)
    nn.init.zeros_(norm.weight)
    nn.init.zeros_(norm.bias)
    x = inputs((4, 8, 8), 2)
    assert torch.equal(block(x), x.relu())


@pytest.mark.parametrize(("groups", "channels", "used"), [(2, 64, 2), (32, 64, 32), (64, 64, 32), (6, 64, 4)])
def test_groups_divide_the_channels_and_hold_two_at_least(groups: int, channels: int, used: int) -> None:
    """A 1 x 1 map normalized channel by channel would always be zero."""
    with torch.device("meta"):
        net = build("resnet18", CIFAR, 10, {"groups": groups})
    norm = next(m for m in net.modules() if isinstance(m, nn.GroupNorm))
    assert (norm.num_channels, norm.num_groups) == (channels, used)


READING_OTHERS = ("transformer", "encoder_rest")  # texts, and outputs of a pretrained encoder


def test_fedsgda_nets_start_by_xavier_and_vggs_by_kaiming() -> None:
    with torch.device("meta"):
        starts = {name: build(name, CIFAR, 10).initializer for name in names() if name not in READING_OTHERS}
        assert build("vgg16", CIFAR, 10, {"norm": "group"}).initializer == "default"
    assert {name for name, start in starts.items() if start == "xavier"} == {"fedsgda_cnn"}
    assert {name for name, start in starts.items() if start == "kaiming"} == {"vgg16", "vgg_small"}


def test_a_transformer_block_is_torch_s() -> None:
    own = build("transformer", (7, 1), 11, {"width": 12, "heads": 3}).double()
    block = own.extractor[1]
    theirs = nn.TransformerEncoderLayer(12, 3, 48, dropout=0.0, batch_first=True, norm_first=True).double()
    given = block.state_dict()
    theirs.load_state_dict({
        "self_attn.in_proj_weight": given["attention.read.weight"],
        "self_attn.in_proj_bias": given["attention.read.bias"],
        **{f"self_attn.out_proj.{part}": given[f"attention.write.{part}"] for part in ("weight", "bias")},
        **{f"linear1.{part}": given[f"hidden.0.{part}"] for part in ("weight", "bias")},
        **{f"linear2.{part}": given[f"hidden.2.{part}"] for part in ("weight", "bias")},
        **{f"norm1.{part}": given[f"before.{part}"] for part in ("weight", "bias")},
        **{f"norm2.{part}": given[f"between.{part}"] for part in ("weight", "bias")},
    })  # fmt: skip
    x = torch.randn(4, 7, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(99))
    torch.testing.assert_close(block(x), theirs(x), rtol=1e-12, atol=1e-12)


def test_a_transformer_reads_symbols_in_their_order() -> None:
    net = build("transformer", (4, 1), 9)
    codes = torch.tensor([[1, 2, 3, 4], [2, 1, 3, 4], [1, 2, 3, 4]]).float().unsqueeze(-1)
    scores = net(codes)
    assert scores.shape == (3, 9) and torch.equal(scores[0], scores[2])
    assert (scores[0] - scores[1]).abs().max() > 1e-4
    codes[1, 0] = torch.nan  # a redacted sample
    assert net(codes)[1].isnan().all() and torch.equal(net(codes)[0], scores[0])


def test_every_model_is_described_in_one_line() -> None:
    rows = {name: describe(name) for name in names()}
    assert all(row["summary"].endswith(".") and "\n" not in row["summary"] for row in rows.values())
    assert all(row["inputs"] for row in rows.values())
    assert rows["mlp"]["settings"] == "hidden=(64,), activation='relu'"


@pytest.mark.parametrize(
    ("name", "shape", "settings", "message"),
    [
        ("resnet_18", CIFAR, {}, r"unknown model 'resnet_18'\. Did you mean 'resnet18'\?"),
        ("logistic", (20, 1), {}, r"model 'logistic' cannot read text; use 'transformer'"),
        ("mlp", (20, 1), {}, r"model 'mlp' cannot read text; use 'transformer'"),
        ("transformer", (20,), {}, r"reads text, not inputs of shape \(20,\); use 'mlp'"),
        ("transformer", (20, 1), {"heads": 5}, "width 32 is not a multiple of 5 heads"),
        (
            "mlp",
            (5,),
            {"hiddens": [3]},
            r"unknown setting of model 'mlp' 'hiddens'\. Did you mean 'hidden'\?",
        ),
        ("logistic", (5,), {"bias": True}, r"unknown setting .* 'bias'\. Allowed: adapter\."),
        ("mlp", (5,), {"hidden": 64}, "'hidden' must be a list of positive integers, not 64"),
        ("mlp", (5,), {"hidden": [64, 0]}, "'hidden' must be a list of positive integers"),
        ("mlp", (5,), {"activation": "gelu"}, "'activation' must be one of 'relu', 'tanh', not 'gelu'"),
        ("fedavg_cnn", FMNIST, {"hidden": True}, "'hidden' must be a positive integer, not True"),
        ("fedavg_cnn", FMNIST, {"hidden": 512.0}, "'hidden' must be a positive integer, not 512.0"),
        ("vgg16", CIFAR, {"width": "1e-1"}, "'width' must be a positive number, not '1e-1'"),
        ("vgg16", CIFAR, {"width": float("nan")}, "'width' must be a positive number"),
        ("vgg16", CIFAR, {"norm": "batch"}, "'norm' must be one of 'none', 'group'"),
        ("resnet18", CIFAR, {"groups": 0}, "'groups' must be a positive integer, not 0"),
        (
            "fedreco_cnn",
            (1, 8, 8),
            {},
            r"'fedreco_cnn' cannot take inputs of shape \(1, 8, 8\): .* \(1, 16, 16\)",
        ),
        ("fedsgda_cnn", (1, 28, 9), {}, r"the least is \(1, 10, 10\)"),
        ("fedsgda_cnn", (3, 7, 32), {}, r"the least is \(3, 8, 8\)"),
        ("fedavg_cnn", (1, 3, 3), {}, r"the least is \(1, 4, 4\)"),
        ("fedreco_cnn", (784,), {}, r"needs images .* not inputs of shape \(784,\)"),
        ("vgg_small", (28, 28), {}, "needs images"),
        ("resnet18", (105,), {}, "needs images"),
        ("logistic", (), {}, "input_shape must have at least one axis"),
        ("logistic", (5, 0), {}, "input_shape must be a list of positive integers"),
    ],
)
def test_what_cannot_be_built_is_refused_with_what_can(
    name: str, shape: tuple[int, ...], settings: Mapping[str, object], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        build(name, shape, 10, settings)


def test_the_number_of_outputs_must_be_positive() -> None:
    with pytest.raises(UserError, match="outputs must be a positive integer, not 0"):
        build("logistic", (5,), 0)


def test_a_model_beyond_memory_is_refused_before_it_takes_any(monkeypatch):
    """5 copies of 101 x 100,000 + 100,001 numbers of 4 bytes are 204 MB."""
    monkeypatch.setattr(registry, "room", lambda: Room(200_000_000, "made up"))
    made = []
    monkeypatch.setattr(nn.Linear, "reset_parameters", lambda layer: made.append(layer.weight.device.type))
    with pytest.raises(
        UserError, match=r"10,200,001 parameters takes at least 204 MB, and 200 MB are left \(made up\)"
    ):
        build("mlp", (100,), 1, {"hidden": [100_000]})
    assert {*made} == {"meta"}
