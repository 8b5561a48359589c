"""Folders of images for each client, in which folders name the classes; the cache of decoded images; refusals."""

import os
import shutil

import numpy as np
import pytest
from PIL import Image

from datasets import decoding
from datasets.catalog import describe_data, load
from datasets.errors import DataError
from tests.support.runs import clients_of_a_run


def draw(path, pixels, mode="L"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(pixels, np.uint8), mode).save(path)


def animated(path):
    frames = [Image.fromarray(np.full((2, 3), value, np.uint8)) for value in (0, 255)]
    frames[0].save(path, save_all=True, append_images=frames[1:])


@pytest.fixture
def hospitals(cache, tmp_path):
    """Two clients, two classes, three gray images of 2 x 3 pixels each; the first has one white pixel."""
    for number, (client, label) in enumerate((c, k) for c in ("Aalen", "Bonn") for k in ("ill", "well")):
        for place in range(3):
            draw(tmp_path / "data" / client / label / f"{place}.png", np.full((2, 3), 20 * number + place))
    pixels = np.zeros((2, 3))
    pixels[0, 2] = 255
    draw(tmp_path / "data" / "Aalen" / "ill" / "0.png", pixels)
    (tmp_path / "data" / "Aalen" / ".hidden").mkdir()
    return tmp_path / "data"


def test_folders_name_clients_and_classes(hospitals):
    data = load(f"images:{hospitals}?positive=ill")
    assert data.x.shape == (12, 1, 2, 3) and data.x[0, 0].tolist() == [[0, 0, 1], [0, 0, 0]]
    assert data.classes == ("well", "ill") and data.y.tolist() == [1, 1, 1, 0, 0, 0] * 2
    assert data.client == "client" and data.columns["client"].tolist() == ["Aalen"] * 6 + ["Bonn"] * 6
    assert load(f"images:{hospitals}?positive=ill&normalize=half").x[0, 0, 0].tolist() == [-1, -1, 1]


def test_one_image_of_color_gives_all_three_channels(hospitals):
    draw(hospitals / "Bonn" / "well" / "2.png", np.full((2, 3, 3), (0, 255, 51)), "RGB")
    data = load(f"images:{hospitals}?positive=ill")
    assert data.x.shape == (12, 3, 2, 3) and np.allclose(data.x[-1, :, 0, 0], [0, 1, 0.2])
    assert data.x[0, :, 0, 2].tolist() == [1, 1, 1]


def test_images_are_upright(hospitals):
    """An image that lies on its side has the size of the others once it is turned, as EXIF's orientation 6 says."""
    turned = Image.Exif()
    turned[0x112] = 6
    lying = Image.fromarray(np.array([[0, 0], [0, 0], [255, 0]], np.uint8))
    lying.save(hospitals / "Aalen/ill/0.png", exif=turned)
    assert load(f"images:{hospitals}?positive=ill").x[0, 0].tolist() == [[1, 0, 0], [0, 0, 0]]


def test_opaque_colors_and_names_of_files_are_as_they_are(hospitals):
    """An opaque fourth channel says nothing; the bytes of a file's name need not be text."""
    pixels = np.full((2, 3, 4), 255)
    pixels[..., :3] = 51
    draw(hospitals / "Aalen" / "ill" / os.fsdecode(b"0\xff.png"), pixels, "RGBA")
    data = load(f"images:{hospitals}?positive=ill")
    assert data.x.shape == (13, 3, 2, 3) and np.allclose(data.x[1], 0.2)


def test_images_are_decoded_once(hospitals, monkeypatch, cache):
    """The cache goes by what the files hold: another image is decoded, a damaged file of the cache is replaced."""
    first = load(f"images:{hospitals}?positive=ill")
    (kept,) = (cache / "images").iterdir()
    with monkeypatch.context() as patch:
        patch.setattr(decoding, "decode", None)
        assert (load(f"images:{hospitals}?positive=ill").x == first.x).all()
    kept.write_bytes(b"no array")
    assert (load(f"images:{hospitals}?positive=ill").x == first.x).all()
    draw(hospitals / "Aalen" / "ill" / "1.png", np.full((2, 3), 9))
    other = load(f"images:{hospitals}?positive=ill")
    assert other.digest != first.digest and len([*(cache / "images").iterdir()]) == 2


def test_train_and_test_are_official_splits(hospitals):
    whole = hospitals.parent / "splits"
    shutil.copytree(hospitals, whole / "train")
    shutil.copytree(hospitals / "Bonn", whole / "test" / "Bonn")
    data = load(f"images:{whole}?positive=ill")
    assert data.official_test.tolist() == [False] * 12 + [True] * 6
    assert data.columns["client"].tolist()[-6:] == ["Bonn"] * 6


def test_a_description_shows_the_images(hospitals):
    found = describe_data(f"images:{hospitals}?positive=ill")
    assert not found.problems and found.clients == {"Aalen": 6, "Bonn": 6}
    assert {one.name: one.kind for one in found.columns} == {
        "client": "text",
        "class": "text",
        "image": "images",
    }


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda at: draw(at / "Bonn/ill/1.png", np.zeros((4, 4))),
            r"Bonn/ill/1\.png has 4 x 4 pixels, and .*3 x 2",
        ),
        (
            lambda at: (at / "Bonn/ill/1.png").write_bytes(b"no"),
            r"Bonn/ill/1\.png is no image that can be read",
        ),
        (lambda at: (at / "Bonn/ill/notes.txt").write_text("a"), r"notes\.txt is no image by its suffix"),
        (lambda at: draw(at / "Ulm" / "1.png", np.zeros((2, 3))), "folder .*Ulm has no folder for a class"),
        (
            lambda at: shutil.rmtree(at / "Bonn/ill") or shutil.rmtree(at / "Bonn/well"),
            "Bonn has no folder for a class",
        ),
        (lambda at: [shutil.rmtree(at / name) for name in ("Aalen", "Bonn")], "has no folder for a client"),
        (
            lambda at: Image.fromarray(np.zeros((2, 3), np.uint16)).save(at / "Bonn/ill/1.png"),
            "has more than 8 bits a channel",
        ),
        (lambda at: (at / "train").mkdir(), "has a folder 'train' and no 'test'"),
        (
            lambda at: draw(at / "Bonn" / "1.png", np.zeros((2, 3))),
            r"Bonn/1\.png is beside the folders for a class",
        ),
        (lambda at: draw(at / "1.png", np.zeros((2, 3))), r"1\.png is beside the folders for a client"),
        (
            lambda at: (at / "Bonn/ill/9.png").symlink_to(at / "nothing"),
            r"9\.png cannot be read: No such file",
        ),
        (
            lambda at: draw(at / os.fsdecode(b"\xff") / "ill" / "1.png", np.zeros((2, 3))),
            r"'\\udcff', which is no text",
        ),
        (
            lambda at: draw(at / "Bonn/ill/1.png", np.zeros((2, 3, 4)), "RGBA"),
            r"1\.png has transparent pixels",
        ),
        (lambda at: animated(at / "Bonn/ill/1.gif"), r"1\.gif holds 2 images; save the one that counts"),
        (
            lambda at: (at / "Bonn/ill/1.png").write_text("%!PS-Adobe-3.0 EPSF-3.0\n"),
            r"1\.png is no image that can",
        ),
    ],
)
def test_folders_that_do_not_fit_are_refused(hospitals, change, said):
    change(hospitals)
    with pytest.raises(DataError, match=said):
        load(f"images:{hospitals}?positive=ill")


def test_options_of_other_formats_are_refused(hospitals):
    with pytest.raises(DataError, match="takes no option 'split'"):
        load(f"images:{hospitals}?split=train")
    with pytest.raises(
        DataError, match=r"normalize='standard' does not fit the column 'image'; .*none, half"
    ):
        load(f"images:{hospitals}?normalize=standard")
    with pytest.raises(DataError, match="is no folder"):
        load(f"images:{hospitals}/Bonn/ill/1.png")


def test_clients_train_on_their_images(hospitals, tmp_path):
    assert clients_of_a_run(f"images:{hospitals}?positive=ill", "mlp", tmp_path) == ["Aalen", "Bonn"]
