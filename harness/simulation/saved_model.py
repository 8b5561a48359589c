"""Trained models in files, and predictions with them.

A file is in the format safetensors: the model's parameters and constants by their names, with what is needed to
apply it (the spec, the columns and their scales, classes, names of clients) and what is known of it (the run, the
privacy statement) as metadata. Reading one runs no code.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, model_validator
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from datasets.federation import Inputs
from datasets.limits import check_regular
from harness import models
from harness.config.settings import checked
from harness.core.errors import UserError, unknown
from harness.core.flat_model import Ravel, set_constants
from harness.simulation.saved_columns import Rows, features, read_rows
from harness.simulation.setup import Setup
from harness.simulation.simulation import Simulation
from harness.storage import seals
from harness.storage.files import Damaged, replacing, writing

FORMAT = "fedfrontier 1"
SCORED = ("auroc",)  # problems whose models score, without a class
CHUNK = 1024  # rows at once, always as many: a sum may be rounded otherwise among other numbers of rows


def check_savable(setup: Setup) -> None:
    """Refuse runs whose model cannot be saved.

    Raises
    ------
    UserError
        If there is no model that can be applied to a table, or one for each client that no mechanism protects.
    """
    problem = setup.problem
    if problem.predict is None or problem.module is None or problem.kind == "vertical":
        raise UserError(
            f"--save-model: problem {problem.name} has no model that one party could apply to a table"
        )
    if setup.federation.encoded:
        raise UserError(
            f"--save-model: models of tables are saved, and features here are those of encoder "
            f"{setup.federation.encoded.partition(',')[0]}, which a table does not have; apply it in Python"
        )
    if setup.federation.inputs is None:
        raise UserError("--save-model: models of tables are saved; images and text have no columns to name")
    # Nodes of a graph release messages; their models, and the mean of these, hold what has no noise.
    nodes = setup.privacy is not None and setup.algorithm.meta.gossip
    if nodes or Simulation.from_setup(setup).keeps_models():
        raise UserError(
            f"--save-model: algorithm {setup.spec.algorithm['name']} leaves every client a model of its own, which "
            "the budget does not protect; a file of them would release the data"
        )


def save_model(setup: Setup, run: Simulation, number: int, line: Mapping[str, Any], path: Path) -> None:
    """Write the model of a finished run.

    Parameters
    ----------
    setup : Setup
        The run.
    run, number : Simulation, int
        Where its state is, in a stack.
    line : Mapping
        Its last evaluation.
    path : Path
        The file.
    """
    module, federation = setup.problem.module, setup.federation
    assert module is not None and federation.inputs is not None
    shapes = {name: parameter.shape for name, parameter in module.named_parameters()}
    size = sum(shape.numel() for shape in shapes.values())
    viewed = setup.algorithm.view(setup.problem)
    model = viewed.ordered(run.personal(number))[..., :size].contiguous()
    pieces = model.split([shape.numel() for shape in shapes.values()], -1)
    tensors = {
        name: piece.reshape(*piece.shape[:-1], *shape).contiguous()
        for (name, shape), piece in zip(shapes.items(), pieces, strict=True)
    }
    # Constants may share memory, which the format cannot say.
    tensors |= {
        name: value.clone(memory_format=torch.contiguous_format) for name, value in module.named_buffers()
    }
    inputs = federation.inputs
    about = {
        "format": FORMAT,
        "run": setup.id,
        "spec": setup.spec.model_dump(mode="json"),
        "features": inputs.features,
        "origins": inputs.origins,
        "shift": inputs.shift.tolist(),
        "scale": inputs.scale.tolist(),
        "classes": federation.classes,
        "label": [federation.mean, federation.std],
        "clients": list(federation.names) if model.ndim > 1 else [],
        "source": federation.source,
        "digest": federation.digest,
        "metrics": line["metrics"],
        "privacy": line["privacy"],
    }
    with writing(path), replacing(path, durable=True) as temporary:
        temporary.write_bytes(save(tensors, {name: json.dumps(value) for name, value in about.items()}))


class Trained(BaseModel):
    """Settings of a run that are needed to apply its model."""

    model_config = ConfigDict(frozen=True, strict=True)
    model: dict[str, Any]
    problem: dict[str, Any]
    algorithm: dict[str, Any]
    data: dict[str, Any]

    @model_validator(mode="after")
    def _named(self) -> Self:
        latent = self.algorithm.get("latent", 1)
        if not isinstance(self.model.get("name"), str) or not isinstance(self.problem.get("kind"), str):
            raise UserError("spec: model and problem need names")
        if not isinstance(latent, int) or latent < 1:
            raise UserError(f"spec.algorithm.latent: a number of features is needed, given {latent!r}")
        return self


class Claim(BaseModel):
    """The privacy statement of a run."""

    model_config = ConfigDict(frozen=True, extra="allow")
    epsilon_total: float


Texts = Annotated[tuple[str, ...], Field(strict=False)]


class About(BaseModel):
    """The metadata of a model.

    Attributes
    ----------
    run, spec, source, digest, metrics, privacy
        The run, its spec, its data, its last metrics and its privacy statement.
    features, origins, shift, scale
        As in `Inputs`.
    classes : tuple[str, ...]
        Names of the labels; empty for numbers.
    label : tuple[float, float]
        Mean and standard deviation of a number to predict.
    clients : tuple[str, ...]
        Their names, if each has a model.
    """

    model_config = ConfigDict(frozen=True, strict=True)
    run: Annotated[str, Field(pattern="^[0-9a-f]{16}$")]
    spec: Trained
    features: Annotated[Texts, Field(min_length=1)]
    origins: Texts
    shift: Annotated[tuple[FiniteFloat, ...], Field(strict=False)]
    scale: Annotated[tuple[Annotated[FiniteFloat, Field(gt=0)], ...], Field(strict=False)]
    classes: Texts
    label: Annotated[tuple[FiniteFloat, FiniteFloat], Field(strict=False)]
    clients: Texts
    source: str
    digest: str
    metrics: dict[str, Any]
    privacy: Claim | None

    @model_validator(mode="after")
    def _fits(self) -> Self:
        """Refuse columns that do not go together."""
        if not len(self.features) == len(self.origins) == len(self.shift) == len(self.scale):
            raise UserError("features, origins, shift and scale differ in length")
        if len({*self.features}) < len(self.features) or len({*self.classes}) < len(self.classes):
            raise UserError("two features or two classes have one name")
        for name, origin in zip(self.features, self.origins, strict=True):
            if name != origin and not (
                name.startswith(origin) and name[len(origin) : len(origin) + 1] in "=_"
            ):
                raise UserError(f"feature {name!r} does not come from the column {origin!r}")
        if len(self.classes) == 1:
            raise UserError("there is one class only")
        return self


@dataclass(frozen=True)
class SavedModel:
    """A model read from a file.

    Attributes
    ----------
    tensors : dict[str, Tensor]
        Parameters by name, with a leading axis of clients if each has a model; and the constants, without one.
    about : About
        The metadata.
    """

    tensors: dict[str, Tensor]
    about: About

    @classmethod
    def read(cls, path: Path) -> SavedModel:
        """Read a file, or the model of a run's folder.

        Raises
        ------
        UserError
            If it is no such file, or is not the one that the run in its folder has written.
        """
        path = path / "model.safetensors" if path.is_dir() else path
        if not path.exists():
            raise UserError(
                f"{path} does not exist; give the folder of a run, DIR/runs/ID, that was made with --save-model"
            )
        check_regular(path)
        _check_sealed(path)
        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            about = {name: json.loads(value) for name, value in metadata.items()}
        except (SafetensorError, OSError, ValueError, RecursionError) as error:
            raise UserError(f"{path} cannot be read: {error}") from None
        if about.pop("format", None) != FORMAT:
            raise UserError(f"{path} holds no model of this version: its format is not {FORMAT!r}")
        return cls(tensors, checked(str(path), About.model_validate, about))

    @property
    def inputs(self) -> Inputs:
        """The features."""
        about = self.about
        shift, scale = (torch.tensor(values, dtype=torch.float64) for values in (about.shift, about.scale))
        return Inputs(about.features, about.origins, shift, scale)

    def function(self, client: str | None = None) -> tuple[Ravel, Tensor]:
        """Return the network and its parameters as a vector, of one client if each has a model.

        Raises
        ------
        UserError
            If a client is needed, not needed, or unknown.
        """
        spec = self.about.spec
        model, kind = dict(spec.model), spec.problem["kind"]
        outputs = 1 if kind in SCORED or not self.about.classes else len(self.about.classes)
        net = models.build(model.pop("name"), (len(self.about.features),), outputs, model)
        if "latent" in spec.algorithm and isinstance(net, models.Net):
            net = models.encoder(net, spec.algorithm["latent"])
        constants = dict(net.named_buffers())
        set_constants(net, {name: value for name, value in self.tensors.items() if name in constants})
        ravel = Ravel(net)
        # Every parameter may have an axis of clients in front, of the same length.
        first = self.tensors.get(ravel.names[0])
        front = () if first is None else tuple(first.shape[: first.ndim - len(ravel.shapes[0])])
        expected = {name: (*front, *shape) for name, shape in zip(ravel.names, ravel.shapes, strict=True)}
        expected |= {name: tuple(value.shape) for name, value in constants.items()}
        shapes = {name: tuple(tensor.shape) for name, tensor in self.tensors.items()}
        types = all(self.tensors[name].dtype == constants[name].dtype for name in constants.keys() & shapes)
        if len(front) > 1 or shapes != expected or not types:
            raise UserError("the file's parameters are not those of the model that its spec names")
        if not all(
            bool(self.tensors[name].isfinite().all()) for name in ravel.names
        ):  # constants may have any
            raise UserError("the file holds parameters that are not finite numbers")
        if not front:
            if client is not None:
                raise UserError(f"--client {client}: all clients have one model")
            return ravel, torch.cat([self.tensors[name].flatten() for name in ravel.names])
        (count,) = front
        names = list(self.about.clients) or [str(number) for number in range(count)]
        if len(names) != count or not count:
            raise UserError(f"the file names {len(names)} clients and holds models of {count}")
        if client is None:
            raise UserError(f"--client: every client has a model; give one of {', '.join(names[:10])}")
        if client not in names:
            raise unknown("client", client, names)
        place = names.index(client)
        return ravel, torch.cat([self.tensors[name][place].flatten() for name in ravel.names])

    def rows(self, table: str | Path, keep: Sequence[str] = (), like: str | None = None) -> Rows:
        """Return the rows of a table, read by the types of this model's columns; see `read_rows`."""
        return read_rows(table, self.inputs, self.about.spec.data, keep, like)

    def predict_beside(
        self, rows: Rows, client: str | None = None, *, fill: bool = False
    ) -> dict[str, np.ndarray]:
        """Return the columns that are kept of a table, and what `predict` returns.

        Raises
        ------
        UserError
            If a column that is kept is called like one of the predictions.
        """
        predicted = self.predict(rows, client, fill=fill)
        if clash := sorted(rows.kept.keys() & predicted.keys()):
            raise UserError(f"--keep {clash[0]}: the predictions have a column of this name")
        return {**rows.kept, **predicted}

    @torch.no_grad()
    def predict(self, rows: Rows, client: str | None = None, *, fill: bool = False) -> dict[str, np.ndarray]:
        """Apply the model to the rows of a table.

        Parameters
        ----------
        rows : Rows
            The rows, of `rows`.
        client : str, optional
            Whose model, if every client has one.
        fill : bool
            Whether the mean of the training samples is written where a number is missing.

        Returns
        -------
        dict
            ``prediction`` and a column of probabilities for each class; for numbers ``prediction``; for models that
            only rank ``score``. Each has a value for each row.

        Raises
        ------
        UserError
            If a cell is missing.
        """
        ravel, model = self.function(client)
        x = features(self.inputs, rows.columns, rows.length, fill=fill).to(model.dtype)
        whole = torch.nn.functional.pad(x, (0, 0, 0, -len(x) % CHUNK))
        outputs = torch.cat([ravel(model, piece) for piece in whole.split(CHUNK)]).double()[: len(x)]
        if self.about.spec.problem["kind"] in SCORED:
            return {"score": outputs.squeeze(-1).numpy()}
        if not self.about.classes:
            mean, std = self.about.label
            return {"prediction": (outputs.squeeze(-1) * std + mean).numpy()}
        shares = outputs.softmax(-1).numpy()
        classes = np.array(self.about.classes)
        return {
            "prediction": classes[shares.argmax(-1)],
            **{f"p({name})": shares[:, place] for place, name in enumerate(classes)},
        }


def _check_sealed(path: Path) -> None:
    """Refuse a model in the folder of a run that has not written it, or not so."""
    try:
        _, seal = seals.read_sealed(path.parent / "done.json")
    except FileNotFoundError:
        if (path.parent / "spec.json").exists():
            raise UserError(
                f"{path} is in the folder of a run that has not ended, so nothing vouches for it"
            ) from None
        return
    if path.name not in seal:
        raise UserError(
            f"{path} is not of the run in its folder, whose done.json names no such file; make the model anew with "
            "--save-model"
        )
    if seal[path.name] != seals.sha256(path):
        raise Damaged(path)
