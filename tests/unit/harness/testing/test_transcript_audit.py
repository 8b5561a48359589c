"""The audit of a transcript accuses no honest mechanism, whatever its settings; `test_mutants` has broken ones."""

import json
import re
from dataclasses import replace
from functools import partial

import pytest
import torch
from scipy import stats

from harness.cli.parser import main
from harness.config.run import read_spec
from harness.core.algorithm import ALGORITHMS
from harness.core.wire import outbox
from harness.core.wire.dp_banded import BandedMechanism
from harness.core.wire.dp_client import Mechanism
from harness.core.wire.dp_distributed import DistributedMechanism
from harness.simulation.build import prepare
from harness.simulation.calibration import calibrated
from harness.testing.conformance_privacy import audits
from harness.testing.small_tasks import simulate, small, wide_task
from harness.testing.transcript_audit import audit_transcript, of_setup
from harness.testing.wiretap import WORST, Wiretap
from tests.support.wire import privacy, record

MECHANISMS = {
    "local": (privacy("local", 1.0, 3.0), None),
    "strict": (privacy("local", 1.0, 3.0, strict=True), None),
    "each part": (privacy("local", (1.0, 4.0), 1.0), None),
    "cohorts": (privacy("local", 1.0, 3.0, sampling="fixed", rate=0.6), 3),
    "central": (privacy("central", 1.0, 3.0, rate=0.4), 2),
    "fixed": (privacy("central", 1.0, 3.0, sampling="fixed", rate=0.6), 3),
    "adaptive": (privacy("central", "adaptive", 3.0), None),
    "clipped average": (privacy("central", 0.5, 40.0, server_clip=0.1), None),
    "records": (record(1.0, 3.0), None),
}


WIDE = {"name": "mlp", "hidden": [100]}


def audited(mechanism, cohort=None, name="scaffold", rounds=8):
    cls = ALGORITHMS[name]
    make = partial(simulate, small(cls), wide_task(cls), rounds=0, cohort=cohort)
    return audit_transcript(make, mechanism, rounds)


@pytest.mark.slow
@pytest.mark.parametrize("name", MECHANISMS)
def test_an_honest_mechanism_is_not_accused(name):
    found = audited(*MECHANISMS[name])
    assert found["findings"] == [] and found["tests"] > 10
    assert found["std_measured"] == pytest.approx(found["std_claimed"], rel=0.2)
    assert found["epsilon_seen"] <= found["epsilon_claimed"] * (1 + 1e-6)
    if name != "cohorts":  # there the ledger may charge clients for rounds without them
        assert found["epsilon_seen"] == pytest.approx(found["epsilon_claimed"])


@pytest.mark.parametrize("unit", ["client", "record"])
def test_parties_whose_last_batch_is_not_full_are_not_accused(unit):
    cls = ALGORITHMS["splitnn"]
    make = partial(simulate, cls(local_epochs=1, batch_size=5), wide_task(cls), rounds=0)
    assert audit_transcript(make, privacy("local", 1.0, 1.0, unit=unit), 4)["findings"] == []


class NoClip(Mechanism):
    def clip(self, slot, parts, samples=None):
        return Mechanism.clip(self, slot, parts)._replace(
            parts=tuple(parts)
        )  # a norm may have to be remembered


class NoiseBeforeTheClip(Mechanism):
    def clip(self, slot, parts, samples=None):
        joint = torch.cat(parts, -1)
        super().clip(slot, parts)
        noisy = joint + super().noise(joint, slot, self.sensitivity(slot), "client")
        return super().clip(slot, list(noisy.split([part.shape[-1] for part in parts], -1)))

    def noise(self, like, *arguments, **settings):
        return torch.zeros_like(like)


class FrozenCount(Mechanism):
    """The count of an adaptive clip has the same noise in every round."""

    def _streams(self, purpose, slot, rows, sender):
        round = self._clients.round
        self._clients.round = 0 if purpose == "clip count" else round
        try:
            return super()._streams(purpose, slot, rows, sender)
        finally:
            self._clients.round = round


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        *((name, kind) for name in MECHANISMS if name != "records" for kind in (NoClip, NoiseBeforeTheClip)),
        ("adaptive", FrozenCount),
    ],
)
def test_a_broken_mechanism_is_accused_under_all_settings(monkeypatch, name, broken):
    monkeypatch.setattr(outbox, "Mechanism", broken)
    assert audited(*MECHANISMS[name])["findings"]


@pytest.mark.slow
def test_an_honest_mechanism_is_hardly_ever_accused():
    """At a false-alarm rate of 0.01, more than 4 alarms in 60 audits have probability below 1e-3."""
    assert stats.binom.sf(4, 60, 0.01) < 1e-3
    found = [
        bool(audit["findings"])
        for seed in range(20)
        for name in ("scaffold", "k_gt_minimax")
        for _, audit in audits(ALGORITHMS[name], only=["local", "central"], seed=seed)
    ]
    assert len(found) == 60 and sum(found) <= 4


def test_clipping_alone_claims_nothing():
    assert audited(privacy("local", 1.0, 0.0))["note"] == "no noise, nothing claimed"


def test_who_releases_nothing_has_nothing_to_audit():
    assert audited(privacy("local", 1.0, 1.0), name="local")["note"] == "nothing is released"


def test_findings_say_where_and_how_much(monkeypatch):
    noise = Mechanism.noise
    monkeypatch.setattr(Mechanism, "noise", lambda self, *given: 0.5 * noise(self, *given))
    findings = audited(*MECHANISMS["local"])["findings"]
    half = r"message 0, part 0: the noise has 0\.(4[5-9]|5[0-5]?)"
    assert any(re.match(half, text) for text in findings), findings


def test_a_client_that_is_not_charged_is_found(monkeypatch):
    """Every client must be covered by the stated epsilon, here one that releases more often than is booked."""
    book = Mechanism.book

    def rarely(self, samples=None):
        if self._clients.round % 4:
            book(self, samples)

    monkeypatch.setattr(Mechanism, "book", rarely)
    findings = audited(*MECHANISMS["local"])["findings"]
    assert "8 releases were made, 6 are booked" in findings
    assert any("claimed" in text for text in findings)


def test_one_client_sends_long_rows():
    seen = []

    class Watching(Wiretap):
        def _note(self, message, *others):
            seen.append((self._clients.ids.tolist(), torch.cat(message.parts, -1).norm(dim=-1)))
            super()._note(message, *others)

    cls = ALGORITHMS["scaffold"]

    def make(**given):
        given["channel"] = partial(Watching, **given["channel"].keywords)
        return simulate(small(cls), wide_task(cls), rounds=0, **given)

    audit_transcript(make, privacy("local", 1.0, 1.0), rounds=2)
    assert seen
    for ids, norms in seen:
        assert norms[ids.index(WORST)] > 1000 and norms[1:].max() < 100


def run_file(**mechanism):
    return {
        "data": "breast-cancer",
        "partition": {"kind": "iid", "clients": 10},
        "model": "logistic",
        "algorithm": {"name": "fedavg", "lr": 1.0, "local_steps": 5, "batch_size": None},
        "privacy": {"unit": "client", "placement": "central", "clip": 1.0} | mechanism,
        "rounds": 4,
    }


@pytest.mark.parametrize("cohort", [None, 3, {"rate": 0.3, "divisor": 3}])
def test_a_prepared_run_in_single_precision_is_audited(cohort):
    whole = run_file(epsilon=4) | {"cohort": cohort}
    if isinstance(cohort, dict):
        whole["algorithm"] = {**whole["algorithm"], "batch_size": 50}  # counts of samples are private
    setup = calibrated(prepare(read_spec(whole)))
    found = audit_transcript(of_setup(setup), setup.privacy, rounds=6)
    assert found["findings"] == []
    weaker = replace(setup.privacy, noise_multiplier=0.5 * setup.privacy.noise_multiplier)
    stronger = audit_transcript(of_setup(setup), weaker, rounds=6)
    assert stronger["std_claimed"] == pytest.approx(0.5 * found["std_claimed"]) and not stronger["findings"]


def banded_run(rounds=12):
    mechanism = {"epsilon": 4, "mechanism": "banded"}
    return calibrated(
        prepare(
            read_spec(
                run_file(**mechanism)
                | {"cohort": {"size": 2, "kind": "balanced"}, "rounds": rounds, "model": WIDE}
            )
        )
    )


def test_noise_that_later_noise_takes_back_is_not_accused():
    setup = banded_run()
    found = audit_transcript(of_setup(setup), setup.privacy)
    assert found["findings"] == [] and found["rounds"] == 12
    assert found["std_measured"] == pytest.approx(found["std_claimed"], rel=0.05)
    assert found["epsilon_seen"] == pytest.approx(found["epsilon_claimed"])


def _multiplied(self, like, slot, round):
    """The past of noise that is multiplied by C instead of divided: the signs of the terms are wrong."""
    return -PAST(self, like, slot, round)


def _shrunk(self, like, slot, round):
    return 1.2 * PAST(self, like, slot, round)


PAST = BandedMechanism._past


@pytest.mark.parametrize("broken", [_multiplied, _shrunk])
def test_noise_that_is_correlated_in_another_way_is_found(monkeypatch, broken):
    monkeypatch.setattr(BandedMechanism, "_past", broken)
    setup = banded_run()
    assert audit_transcript(of_setup(setup), setup.privacy)["findings"]


SUMMED = (privacy("distributed", 1.0, 3.0, dropouts=0.3), None)


def test_noise_that_clients_add_together_is_not_accused():
    found = audited(*SUMMED)
    assert found["findings"] == [] and found["tests"] > 10
    assert found["std_measured"] == pytest.approx(found["std_claimed"], rel=0.1)
    assert found["epsilon_seen"] == pytest.approx(found["epsilon_claimed"])


def _too_little(self, length):
    return [one._replace(sigma=0.7 * one.sigma) for one in GRIDS(self, length)]


def _the_same_for_all(self, purpose, slot, rows, sender):
    return STREAMS(self, purpose, slot, rows, sender)[:1] * rows.shape[:-1].numel()


GRIDS, STREAMS = DistributedMechanism.grids, DistributedMechanism._streams


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("clip", NoClip.clip),
        ("grids", _too_little),
        ("_streams", _the_same_for_all),
    ],
)
def test_broken_noise_that_clients_add_together_is_found(monkeypatch, name, broken):
    monkeypatch.setattr(DistributedMechanism, name, broken)
    assert audited(*SUMMED)["findings"]


def test_clients_that_take_part_too_soon_again_are_found(monkeypatch):
    setup = banded_run()
    monkeypatch.setattr(
        "harness.core.clients.sampling.balanced_cohort",
        lambda order, size, round: order[..., :size].sort(-1).values,
    )
    found = audit_transcript(of_setup(setup), setup.privacy, rounds=3)
    assert any("takes part in rounds 0 and 1" in text for text in found["findings"])


def commanded(content, tmp_path, capsys, *options) -> tuple[int, list, str]:
    file = tmp_path / "run.yaml"
    file.write_text(json.dumps(content))
    code = main(["audit", "--spec", str(file), "--trials", "5", "--json", *options])
    printed = capsys.readouterr()
    return code, json.loads(printed.out) if printed.out else [], printed.err


PLACED = {"client": {"placement": "local"}, "record": {"unit": "record"}}


@pytest.mark.slow
@pytest.mark.parametrize("unit", PLACED)
def test_the_command_prints_both_parts(unit, tmp_path, capsys):
    content = run_file() | {"privacy": {**PLACED[unit], "clip": 1.0, "epsilon": 4}}
    code, parts, _ = commanded(content, tmp_path, capsys, "--canaries", "8")
    transcript, run = parts
    assert code == 0 and (transcript["part"], run["part"]) == ("transcript", "run")
    assert run["epsilon_lower"] <= run["epsilon_upper"] <= 4 * (1 + 1e-6)


@pytest.mark.slow
def test_cohorts_of_clients_without_samples_are_audited(tmp_path, capsys):
    """Excluded canaries are clients without a sample, and small cohorts consist of them."""
    content = run_file(epsilon=4) | {"cohort": 2, "seed": 1}
    code, parts, complaint = commanded(content, tmp_path, capsys, "--canaries", "60")
    assert code == 0 and parts[1]["canaries"] == 60, complaint


AUROC = {"problem": {"kind": "auroc"}, "algorithm": {"name": "coda_plus", "local_steps": 2}}
GOSSIP = {
    "problem": {"kind": "random_quadratic"},
    "algorithm": {"name": "dm_hsgd"},
    "topology": "ring",
    "privacy": {"placement": "local", "clip": 1.0, "epsilon": 4},
}
ROWS = {key: value for key, value in run_file().items() if key not in ("data", "partition", "model")}


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (run_file(epsilon=4) | {"privacy": None}, "claims no privacy"),
        (run_file(epsilon=4) | {"algorithm": {"name": "local"}}, "one model of the server"),
        (run_file(epsilon=4) | AUROC, "ranks"),
        (ROWS | GOSSIP, "predicts classes"),
    ],
)
def test_what_cannot_be_audited_is_refused(content, complaint, tmp_path, capsys):
    code, _, refusal = commanded(content, tmp_path, capsys, "--canaries", "8")
    assert code == 2 and complaint in refusal
    if content["privacy"]:
        assert commanded(content, tmp_path, capsys, "--canaries", "0")[0] == 0


def test_canaries_have_no_place_in_a_topology(tmp_path, capsys):
    gossip = {"algorithm": {"name": "dm_hsgd"}, "topology": "ring", "problem": {"kind": "auroc"}}
    content = run_file() | gossip | {"privacy": {"placement": "local", "clip": 1.0, "epsilon": 4}}
    code, _, refusal = commanded(content, tmp_path, capsys)
    assert code == 2 and "topology" in refusal


def test_a_run_without_noise_betrays_its_canaries(tmp_path, capsys):
    """With fewer clients than parameters nothing hides who took part; the claim is then infinite, and true."""
    _, (_, run), _ = commanded(run_file(noise_multiplier=0), tmp_path, capsys, "--canaries", "40")
    assert run["epsilon_lower"] > 0.3 and run["epsilon_upper"] == "inf" and not run["findings"]
    assert run["bound"] == "gaussian" and run["epsilon_gaussian"] > run["epsilon_guesses"] > 0


def test_a_run_that_forgets_its_noise_is_caught(monkeypatch, tmp_path, capsys):
    content = run_file(epsilon=0.1)
    assert commanded(content, tmp_path, capsys, "--canaries", "40")[0] == 0
    monkeypatch.setattr(Mechanism, "noise", lambda self, like, *others, **named: torch.zeros_like(like))
    code, parts, _ = commanded(content, tmp_path, capsys, "--canaries", "40")
    assert code == 1 and all(part["findings"] for part in parts)


def test_sampled_runs_are_bounded_by_guesses(tmp_path, capsys):
    _, (_, run), _ = commanded(run_file(epsilon=4) | {"cohort": 5}, tmp_path, capsys, "--canaries", "8")
    assert run["bound"] == "guesses" and run["epsilon_gaussian"] is None
