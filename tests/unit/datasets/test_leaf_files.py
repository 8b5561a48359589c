"""JSON files of LEAF: images, vectors, signs and texts by user; folders of them; refusals that name the user."""

import json
import zlib

import numpy as np
import pytest

from datasets.catalog import describe_data, load
from datasets.errors import DataError
from datasets.texts import SYMBOL_NAMES, WORDS
from tests.support.runs import clients_of_a_run

LINE = "To be, or not to be: that is the question"


def written(path, users, /, **changed):
    """Write a file of users with their x and y."""
    path.parent.mkdir(parents=True, exist_ok=True)
    counts = [len(data["y"]) for data in users.values()]
    content = {"users": list(users), "num_samples": counts, "user_data": users, **changed}
    path.write_text(json.dumps(content))
    return path


def digits(*sizes):
    """Return users with images of FEMNIST's size, whose pixels are the number of the sample."""
    return {
        f"f{user}": {
            "x": [[place / 8] * 784 for place in range(size)],
            "y": [place % 2 for place in range(size)],
        }
        for user, size in enumerate(sizes)
    }


def plays(length=10, samples=20):
    places = range(samples)
    return {
        f"PLAY_{user}": {
            "x": [LINE[user + place : user + place + length] for place in places],
            "y": [LINE[user + place + length] for place in places],
        }
        for user in range(2)
    }


def tweets():
    return {
        user: {
            "x": [
                [str(n), "Mon", "NO_QUERY", user, f"I {'love' if n % 2 else 'hate'} it", "training"]
                for n in range(6)
            ],
            "y": [n % 2 for n in range(6)],
        }
        for user in ("ann", "bob")
    }


def test_lists_of_femnists_length_are_images_of_users(tmp_path):
    data = load(f"leaf:{written(tmp_path / 'a.json', digits(3, 2))}")
    assert data.x.shape == (5, 1, 28, 28) and data.x[:, 0, 0, 0].tolist() == [0, 1 / 8, 2 / 8, 0, 1 / 8]
    assert (data.classes, data.y.tolist()) == (("0", "1"), [0, 1, 0, 0, 1])
    assert data.client == "client" and data.columns["client"].tolist() == ["f0"] * 3 + ["f1"] * 2
    assert load(f"leaf:{tmp_path}/a.json?normalize=half").x[1, 0, 0, 0] == 2 / 8 - 1


def test_pixels_above_one_are_divided_by_255(tmp_path):
    users = {"f0": {"x": [[255] * 784, [51] * 784], "y": [0, 1]}}
    assert np.allclose(load(f"leaf:{written(tmp_path / 'a.json', users)}").x[:, 0, 0, 0], [1, 0.2])
    users["f0"]["x"][0][3] = -1
    with pytest.raises(DataError, match="has pixels from -1 to 255; they must be from 0 to 1, or to 255"):
        load(f"leaf:{written(tmp_path / 'a.json', users)}")


def test_other_lists_are_features_that_are_standardized(tmp_path):
    users = {"u": {"x": [[1.5, 0], [2.5, 1]], "y": ["low", "high"]}}
    data = load(f"leaf:{written(tmp_path / 'a.json', users)}")
    assert data.features == ("x 0", "x 1") and data.continuous.tolist() == [True, False]
    assert data.x.tolist() == [[1.5, 0], [2.5, 1]] and data.classes == ("high", "low")


def test_texts_of_one_length_predict_the_next_sign(tmp_path):
    """The names of 97 signs are the classes; "T" is the sign 84 of ASCII, and place 0 is the end of line."""
    data = load(f"leaf:{written(tmp_path / 'a.json', plays())}")
    assert data.x.shape == (40, 10, 1) and data.x[0, 0, 0] == ord("T") - ord(" ") + 1
    assert data.classes == SYMBOL_NAMES and len(data.classes) == 97
    assert data.classes[data.y[0]] == LINE[10] and data.classes[data.y[5]] == LINE[15]
    assert {data.classes[y] for y in data.y} >= {"space"}


def test_words_of_tweets_are_counted_and_kept(tmp_path):
    """Case does not count; two different words have the places of their checksums."""
    data = load(f"leaf:{written(tmp_path / 'a.json', tweets())}")
    assert data.x.shape == (12, WORDS) and data.x.sum(1).tolist() == [3] * 12
    assert data.x[:2, zlib.crc32(b"love") % WORDS].tolist() == [0, 1]
    assert data.columns["x"][0] == "I hate it" and data.classes == ("0", "1")


@pytest.mark.parametrize("last", [5, 6])
def test_lists_of_words_are_texts_unless_they_are_tweets(tmp_path, last):
    """A tweet ends with the file it was in; lists of words may be as long."""
    users = {"ann": {"x": [["a"] * 5, ["a"] * last], "y": [0, 1]}, "bob": {"x": [["b"] * last], "y": [0]}}
    assert load(f"leaf:{written(tmp_path / 'a.json', users)}").x.sum(1).tolist() == [5, last, last]


def test_folders_train_and_test_are_official_splits(tmp_path):
    written(tmp_path / "train" / "a.json", digits(3))
    written(tmp_path / "train" / "b.json", {"g": digits(4)["f0"]})
    written(tmp_path / "test" / "a.json", digits(2))
    data = load(f"leaf:{tmp_path}")
    assert data.official_test.tolist() == [False] * 7 + [True] * 2
    assert data.columns["client"].tolist() == ["f0"] * 3 + ["g"] * 4 + ["f0"] * 2
    assert load(f"leaf:{tmp_path}/train").official_test is None
    (tmp_path / "test" / "a.json").unlink()
    with pytest.raises(DataError, match=r"test has no \*\.json"):
        load(f"leaf:{tmp_path}")


def test_the_digest_covers_each_file_and_its_split(tmp_path):
    one = load(f"leaf:{written(tmp_path / 'a' / 'a.json', digits(3))}").digest
    assert load(f"leaf:{tmp_path / 'a'}").digest == one
    for split in ("train", "test"):
        written(tmp_path / split / "a.json", digits(3))
    both = load(f"leaf:{tmp_path}").digest
    written(tmp_path / "test" / "a.json", digits(4))
    assert len({one, both, load(f"leaf:{tmp_path}").digest}) == 3


def test_a_description_names_what_users_have(tmp_path):
    found = describe_data(f"leaf:{written(tmp_path / 'a.json', digits(3, 2))}")
    assert not found.problems and found.features == 784 and found.clients == {"f0": 3, "f1": 2}
    kinds = {one.name: (one.role, one.kind, one.values) for one in found.columns}
    assert kinds["x"] == ("input", "images", "1 x 28 x 28")
    assert found.summary[0] == "a.json: 5 rows; each has 1 x 28 x 28 numbers"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda users: users["f0"]["x"].pop(), "a.json: the user 'f0' has 1 samples in x and 2 labels in y"),
        (lambda users: users.pop("f0"), "a.json: the user 'f0' is missing in user_data"),
        (lambda users: users.update(g=users["f0"]), "a.json: user_data has 'g', who is not in users"),
        (lambda users: users["f1"].pop("y"), "a.json: the user 'f1' needs x and y, and has x"),
        (
            lambda users: users["f0"]["x"][1].pop(),
            "the user 'f0': sample 2 has 783 numbers, and the first has 784",
        ),
        (
            lambda users: [x.pop() for x in users["f1"]["x"]],
            r"the user 'f1' has samples of shape \(783,\), and other users \(784,\)",
        ),
        (lambda users: users["f1"].update(x=["a", "b"]), "the user 'f1' has texts, and another user numbers"),
        (
            lambda users: users["f1"].update(x=[{}, {}]),
            "the user 'f1': x must hold texts, or lists of numbers",
        ),
        (
            lambda users: users["f1"].update(x=[[1.0] * 784, ["1"] * 784]),
            "the user 'f1': x must hold texts, or lists of numbers",
        ),
        (
            lambda users: users["f1"].update(y=[[1], [0]]),
            "a.json: y holds list; a class or a number a sample",
        ),
        (
            lambda users: [user.update(x=["1.jpg", "2.jpg"]) for user in users.values()],
            r"'f0' names image files, such as '1\.jpg', which are not in the file; .* give images:FOLDER",
        ),
        (lambda users: users["f1"].update(y=[10**400, 0]), "a.json: y holds an infinite number"),
    ],
)
def test_users_that_do_not_fit_are_refused_by_name(tmp_path, change, said):
    users = digits(2, 2)
    content = {"users": ["f0", "f1"], "num_samples": [2, 2], "user_data": users}
    change(users)
    (tmp_path / "a.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match=said):
        load(f"leaf:{tmp_path}/a.json")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"num_samples": [2]}, "2 users, but num_samples of 1"),
        ({"num_samples": [2, 3]}, "the user 'f1' has 2 samples, and num_samples says 3"),
        ({"users": ["f0", "f0"]}, "users names 'f0' twice"),
        ({"users": "f0"}, "users must be a list"),
    ],
)
def test_files_that_contradict_themselves_are_refused(tmp_path, changed, said):
    with pytest.raises(DataError, match=said):
        load(f"leaf:{written(tmp_path / 'a.json', digits(2, 2), **changed)}")


def test_what_is_no_file_of_leaf_is_refused(tmp_path):
    path = tmp_path / "a.json"
    for content, said in (
        ("{", "is no JSON"),
        ('{"a": 1}', "users, num_samples and user_data are needed, it has a"),
        ('{"users": ["a"], "user_data": {"a": {}, "a": {}}}', "'a' stands twice in one object"),
    ):
        path.write_text(content)
        with pytest.raises(DataError, match=said):
            load(f"leaf:{path}")
    with pytest.raises(
        DataError, match=r"the column 'client' has the value '\\ud800', which is no text in Unicode"
    ):
        load(f"leaf:{written(path, {chr(0xD800): digits(2)['f0']})}")
    with pytest.raises(DataError, match=r"has no \*\.json; give one of: .*all_data"):
        written(tmp_path / "data" / "all_data" / "a.json", digits(2))
        load(f"leaf:{tmp_path}/data")
    with pytest.raises(DataError, match="name their clients themselves; give one path: leaf:PATH"):
        load(f"leaf:{tmp_path}/*.json")


def test_a_user_in_two_files_and_a_short_text_are_refused(tmp_path):
    written(tmp_path / "a.json", digits(2))
    written(tmp_path / "b.json", digits(2))
    with pytest.raises(DataError, match=r"b\.json has the user 'f0', whom a\.json has too"):
        load(f"leaf:{tmp_path}")
    users = plays()
    users["PLAY_1"]["x"][2] = "To be"
    with pytest.raises(DataError, match="'PLAY_1': the text of sample 3 has 5 signs, and most have 10"):
        load(f"leaf:{written(tmp_path / 'a.json', users)}")


@pytest.mark.parametrize(
    ("users", "model"), [(digits(8, 8), "logistic"), (plays(), "transformer"), (tweets(), "logistic")]
)
def test_users_train_as_natural_clients(tmp_path, users, model):
    assert clients_of_a_run(f"leaf:{written(tmp_path / 'a.json', users)}", model, tmp_path) == [*users]
