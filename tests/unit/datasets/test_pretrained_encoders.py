"""The encoders of ours: their parts derived by hand, and their features where the weights are on this machine."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from datasets.encoders import ENCODERS
from datasets.encoders.efficientnet import EPSILON, Convolution
from datasets.encoders.wordpiece import WordPiece
from datasets.errors import DataError


def real(name):
    """Return an encoder whose weights are on this machine; nothing is fetched."""
    try:
        ENCODERS[name].weights.located(name, online=False)
    except DataError as error:
        pytest.skip(str(error).splitlines()[0])
    return ENCODERS[name].build()


@pytest.mark.parametrize("side", [7, 8])
@pytest.mark.parametrize("kernel", [3, 5])
def test_a_convolution_is_normalized_and_padded_last(kernel, side):
    """Stride 2 halves a side, rounded up; the padding that this takes is larger at the end if it is odd."""
    torch.manual_seed(0)
    plain, norm = nn.Conv2d(3, 4, kernel, 2, bias=False), nn.BatchNorm2d(4, EPSILON)
    norm.weight.data.uniform_(0.5, 2)
    norm.bias.data.normal_()
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.5, 2)
    x = torch.rand(2, 3, side, side)
    total = kernel - 2 if side % 2 == 0 else kernel - 1
    before, after = total // 2, total - total // 2
    padded = nn.functional.pad(x, (before, after, before, after))
    expected = nn.functional.relu6(norm.eval()(plain(padded)))
    weights = {f"a.{name}": value for name, value in plain.state_dict().items()}
    weights |= {f"b.{name}": value for name, value in norm.state_dict().items()}
    out = Convolution(weights, "a", "b", 2, bounded=True)(x)
    assert out.shape == (2, 4, 4, 4)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_efficientnet_has_the_features_of_its_package():
    """The numbers are those of the network in efficientnet-lite-pytorch 0.1.0 for the same image."""
    network = real("efficientnet-lite0")
    ramp = torch.linspace(0, 1, 96)
    image = torch.stack([ramp.expand(96, 96), ramp[:, None].expand(96, 96), 1 - ramp.expand(96, 96)])
    with torch.no_grad():
        made = network(image[None])[0]
    assert made.shape == (1280,)
    assert made[[2, 7, 71]].tolist() == pytest.approx([2.514274, 0.194982, 4.516630], abs=1e-4)
    assert made.argmax() == 71
    assert [made.sum().item(), made.norm().item()] == pytest.approx([169.20999, 17.619253], abs=1e-2)


PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "un", "##aff", "##able", ",", "cafe", "##s", "日", "!", "a"]


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("Unaffable, cafés!", ["un", "##aff", "##able", ",", "cafe", "##s", "!"]),  # lower case, no accents
        ("unaffably", ["[UNK]"]),  # a rest that is no piece makes the whole word unknown
        ("日日", ["日", "日"]),  # ideographs are words
        (
            "a\tcafe\u00a0a\u200b",
            ["a", "cafe", "a"],
        ),  # white space of any kind; what does not show is left out
        ("a" * 101, ["[UNK]"]),
        ("", []),
    ],
)
def test_texts_become_the_longest_known_pieces(tmp_path, text, pieces):
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES) + "\n", encoding="utf-8")
    tokens = WordPiece(tmp_path / "vocab.txt")
    assert tokens(text, 50) == [PIECES.index(piece) for piece in ["[CLS]", *pieces, "[SEP]"]]


def test_a_long_text_keeps_its_first_pieces_and_its_end(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES), encoding="utf-8")
    assert WordPiece(tmp_path / "vocab.txt")("a, a, a", 4) == [2, 12, 7, 3]


SENTENCES = [
    "A man is playing a guitar.",
    "Someone plays an instrument.",
    "The stock market fell sharply today.",
    "Shares dropped on Wall Street.",
]


@pytest.mark.slow
def test_minilm_has_the_features_of_the_reference():
    """The numbers are those of BertModel in transformers 5.24, averaged over tokens and of norm 1."""
    network = real("minilm")
    with torch.no_grad():
        made = network(SENTENCES, 256)
        alone = network(SENTENCES[1:2], 256)
    assert made[0, :5].tolist() == pytest.approx(
        [0.02166409, -0.00486421, -0.00964908, -0.06340125, -0.16749343], abs=1e-5
    )
    torch.testing.assert_close(alone[0], made[1], rtol=0, atol=1e-6)  # padding does not count
    alike = made @ made.T
    assert alike.diagonal().tolist() == pytest.approx([1.0] * 4, abs=1e-5)
    assert min(alike[0, 1], alike[2, 3]) > 0.5 > 0.1 > alike[:2, 2:].max()


@pytest.mark.slow
def test_minilm_takes_as_many_tokens_as_it_has_places():
    network = real("minilm")
    with pytest.raises(DataError, match=r"data\.size: texts have 3 to 512 tokens, given 513"):
        network(["a"], 513)
