"""The gate before a release: devices judge both models on samples that trained none; a hostile one counts as one."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from test_rollout_drift import CA, predicting

import fedfloor
from fedfloor import Metric, TestedSamples, config
from fedfloor.base.errors import SettingError
from fedfloor.base.outside import name_of
from fedfloor.base.ranges import RefusedError
from fedfloor.cli import releasing
from fedfloor.data.files import buffer
from fedfloor.deploy import authority, live, own
from fedfloor.deploy import device as agents
from fedfloor.deploy.live import TrialPark
from fedfloor.deploy.message import Message
from fedfloor.deploy.mqtt import MqttConnection
from fedfloor.deploy.own import Labelled
from fedfloor.deploy.settings import DataSource
from fedfloor.deploy.signing import Signer
from fedfloor.park.build import build, hold_out_recent
from fedfloor.parts.metrics import headline
from fedfloor.rollout import gate, registry, schedule
from fedfloor.rollout import model as models
from fedfloor.rollout.delivery import Station
from fedfloor.rollout.gate import Judgement, read
from fedfloor.rollout.model import Model
from fedfloor.rollout.registry import Registry
from fedfloor.rollout.serving import JUDGED, Serving
from fedfloor.rollout.statement import (
    CHUNK_BYTES,
    JUDGEMENT,
    TRIAL,
    Statement,
    attested,
    is_trial,
    judgement,
    opened,
    sealed,
)
from fedfloor.rollout.training import judge, value
from fedfloor.runs.parks import build_park
from fedfloor.sensors.buffer import writing
from fedfloor.sensors.grid import Row
from fedfloor.tasks.classification import CLASSIFICATION
from fedfloor.tasks.figures import LOSS, named
from fedfloor.tasks.reconstruction import Reconstruction
from fedfloor.tasks.regression import Regression
from live_park import device_settings, member
from parks import needs_mosquitto
from refusals import refused
from rollouts import model as onnx_model
from rollouts import provisioned, registered

ACCURACY = named("accuracy")


def loaded(seed: int, number: int = 1, **more: Any) -> Model:
    data = onnx_model(seed, **more)
    return models.load(data, statement(data, number))


def statement(data: bytes, number: int) -> Statement:
    return Statement("trial", "d0", number, number, "logistic", hashlib.sha256(data).hexdigest(), len(data))


def seen_by(truth: Model, count: int = 200) -> Labelled:
    """Samples whose labels are those that a model gives."""
    x = np.random.default_rng(3).normal(size=(count, 3)).astype(np.float32)
    y = truth.outputs(x)["logits"].argmax(1).astype(np.int64)
    return Labelled(x, y, None, ("good", "bad"), CLASSIFICATION)


@dataclass(frozen=True)
class Wrong(Metric):
    """The cost of wrong answers."""

    better = "lower"
    unit = "EUR"

    def value(self, samples: TestedSamples) -> float:
        assert samples.classes == ("good", "bad")
        assert (samples.scores.argmax(1) == samples.predicted).all()
        return float(7 * (samples.true != samples.predicted).mean())


def test_a_device_judges_by_a_metric_of_ones_own() -> None:
    truth = loaded(1)
    other = loaded(2)
    figure = headline(name_of(Wrong))
    found = judge(lambda: seen_by(truth), figure)(truth, other)
    right = value(other, seen_by(truth), ACCURACY)
    assert right is not None
    assert found == {"figure": "wrong", "samples": 200, "new": 0.0, "old": pytest.approx(7 * (1 - right))}
    assert read(found, figure).gain(figure) == 1.0


# -- what a device holds out -------------------------------------------------------------------------------------------


def test_the_held_out_samples_train_no_model_and_judge_alone() -> None:
    bare, park = (build("labels", devices=4, samples_per_device=30, recent=share) for share in (None, 0.2))
    assert bare.recent is None
    assert park.sizes.tolist() == [24] * 4
    held = park.recent
    assert held is not None
    assert held.held_by is not None
    assert np.bincount(held.held_by).tolist() == [6] * 4
    whole = [set(map(bytes, bare.samples(k)[0])) for k in range(4)]
    kept = [set(map(bytes, park.samples(k)[0])) for k in range(4)]
    apart = [set(map(bytes, held.take_test(np.flatnonzero(held.held_by == k)))) for k in range(4)]
    assert all(not kept[k] & apart[k] and kept[k] | apart[k] == whole[k] for k in range(4))


def test_samples_with_times_are_held_out_from_the_newest_on() -> None:
    data = build("labels", devices=2, samples_per_device=10).dataset
    data = replace(data, time=np.arange(20)[::-1].astype(np.float64), made=None, y=data.labels(np.arange(20)))
    held, kept = hold_out_recent(data, [np.arange(10), np.arange(10, 20)], 0.2, 0)
    assert held is not None
    assert [part.tolist() for part in kept] == [[*range(2, 10)], [*range(12, 20)]]
    assert hold_out_recent(data, [np.arange(1)], 0.2, 0)[0] is None  # a device with one sample keeps it


def test_a_device_of_an_experiment_has_its_own_share_of_them_alone(tmp_path: Path) -> None:
    what = experiment(tmp_path, "evaluate.recent = 0.25\n")
    park = build_park(what)
    agent = agents.of(device_settings(tmp_path, tmp_path / "e.toml", 1, 0), what, lambda _: cast(Any, None))
    found = agent.labelled()
    assert park.recent is not None
    rows = np.flatnonzero(park.recent.held_by == 1)
    assert (found.x == park.recent.take_test(rows)).all()
    assert (found.y == park.recent.y_test[rows]).all()
    assert agent.own_park().sizes[1] == park.sizes[1] == 15


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ("", "evaluate.recent"),
        ('evaluate.recent = 0.25\nmethod.travel = "secure-sum"\n', "private-metrics"),
        ("evaluate.recent = 0.25\nwork.sample_clip = 1.0\nwork.sample_noise = 1.0\n", "private-metrics"),
        ("evaluate.recent = 0.25\npark.census_epsilon = 1.0\n", "private-metrics"),
    ],
)
def test_a_device_that_holds_nothing_out_or_protects_it_judges_nothing(tmp_path: Path, lines: str, why: str) -> None:
    what = experiment(tmp_path, lines)
    agent = agents.of(device_settings(tmp_path, tmp_path / "e.toml", 1, 0), what, lambda _: cast(Any, None))
    with refused(why):
        agent.labelled()


def experiment(folder: Path, lines: str) -> config.Experiment:
    (folder / "e.toml").write_text(
        'name = "e"\nrounds = 1\ndata.samples_per_device = 20\npark.devices = 2\npark.factories = 1\n'
        f'model.name = "logistic"\nmethod.name = "fedavg"\n{lines}'
    )
    return config.read(folder / "e.toml", [])


def test_a_buffer_holds_out_its_newest_windows_and_gives_those_of_now(tmp_path: Path) -> None:
    """Of 40 windows at a time 8 more are held out; none of these shares a row with a window that trains."""
    rows = [Row(0, float(t), np.array([t], np.float32), "ab"[t % 2]) for t in range(600)]
    path = tmp_path / "b.sqlite"
    with writing(path, ("x",), 64, 24, 5.0) as made:
        made.write(rows[:400])
        what = config.from_table(
            {
                "data": {"task": "classification", "window": {"length": 4, "step": 2}, "path": str(path),
                         "stream": {"kind": "fifo", "window": 40}, "columns": {"label": "label"}},
                "evaluate": {"recent": 0.2}, "model": {"name": "logistic"}, "park": {"devices": 1},
            }
        )  # fmt: skip
        facts = facts_of(path, what)
        park = own.buffer_park(replace(device_settings(tmp_path, tmp_path / "e.toml", 0, 0)), what, facts, path, 40)
        assert park.sizes.tolist() == [40]
        x, _ = park.held(0, 0, 0)
        held = own.labelled(park)
        assert held is not None
        assert held.x.shape == (8, 1, 4)
        assert held.x.max() == 399
        assert x.max() < held.x.min()
        made.write(rows[400:])
        later = own.labelled(park)
        assert later is not None
        assert later.x.max() == 599


def test_a_device_that_was_started_again_since_it_trained_still_judges(tmp_path: Path) -> None:
    path = tmp_path / "b.sqlite"
    with writing(path, ("x",), 64, 24, 5.0) as made:
        made.write(Row(0, float(t), np.array([t], np.float32), "ab"[t % 2]) for t in range(100))
    what = config.from_table(
        {
            "data": {"task": "classification", "path": str(path), "columns": {"label": "label"}},
            "evaluate": {"recent": 0.2}, "model": {"name": "logistic"}, "park": {"devices": 1},
        }
    )  # fmt: skip
    settings = device_settings(tmp_path, tmp_path / "e.toml", 0, 0)
    settings = replace(settings, data=DataSource("folder", path=str(path)), state=tmp_path / "state")
    first, again = (agents.Agent(settings, what, None, lambda _: cast(Any, None)) for _ in range(2))
    with refused("not-trained"):
        first.labelled()
    about = {"facts": facts_of(path, what).to_dict()}
    first.holding(Message("facts", settings.edge, "run", 0, 1, 1, "all", "", about, {}), at_home=True)
    assert first.own_park().sizes.tolist() == [80]
    for one in (first, again):
        assert one.labelled().x.ravel().tolist() == [*range(80, 100)]


def facts_of(path: Path, what: config.Experiment) -> Any:
    """The facts of a sample, as a cloud has them that reads the same rows."""
    from fedfloor.deploy import facts

    data = buffer.load(path, own.device_reading(what, cast(Any, SimpleNamespace(
        inputs=SimpleNamespace(coding={}), task=None, classes=("a", "b")))), 0)  # fmt: skip
    return facts.of(what, data)


@pytest.mark.parametrize(
    ("task", "classes"),
    [
        (None, ("a", "b")),
        (Regression(names=("life",), center=(50.0,), scale=(9.0,)), ()),
        (Reconstruction(), ()),
        (CLASSIFICATION, ("a", "b")),
    ],
)
def test_the_classes_of_a_devices_files_are_those_of_labels_alone(task: Any, classes: tuple[str, ...]) -> None:
    """Ranges of a target, and normal or anomaly, are names of bins that no column of a device has."""
    known = SimpleNamespace(inputs=SimpleNamespace(coding={}), task=task, classes=("a", "b"))
    assert own.device_reading(config.from_table({}), cast(Any, known)).classes == classes


# -- what a device answers ---------------------------------------------------------------------------------------------


def test_a_device_states_its_figure_of_both_models() -> None:
    truth = loaded(1)
    other = loaded(2)
    seen = seen_by(truth)
    found = judge(lambda: seen, None)(truth, other)
    assert found == {"figure": "accuracy", "samples": 200, "new": 1.0, "old": value(other, seen, ACCURACY)}
    assert 0 <= found["old"] < 1
    assert judge(lambda: seen, LOSS)(truth, other)["new"] < judge(lambda: seen, LOSS)(truth, other)["old"]
    assert judge(lambda: seen, named("AUROC of bad"))(truth, None) == {
        "figure": "AUROC of bad", "samples": 200, "new": 1.0, "old": None,
    }  # fmt: skip


def test_classes_are_known_by_name_and_not_by_place() -> None:
    truth = loaded(1)
    seen = replace(seen_by(truth), classes=("bad", "good"))
    seen = replace(seen, y=1 - seen.y)
    assert value(truth, seen, ACCURACY) == 1.0
    with refused("classes", RefusedError):
        value(truth, replace(seen, classes=("bad", "fair")), ACCURACY)


def test_samples_with_missing_values_count_only_where_models_know_such() -> None:
    truth = loaded(1)
    seen = seen_by(truth)
    seen.x[:50, 0] = np.nan
    assert judge(lambda: seen, None)(truth, truth)["samples"] == 150


def test_a_device_that_cannot_judge_states_why() -> None:
    def none() -> Labelled:
        raise SettingError("it has not trained yet.")

    assert judge(none, None)(loaded(1), None) == {"why": "it has not trained yet."}
    seen = seen_by(loaded(1))
    assert "requires another form of samples" in judge(lambda: seen, None)(loaded(1, window=4), None)["why"]
    assert (
        "recall of bad is not defined"
        in judge(lambda: replace(seen, y=0 * seen.y), named("recall of bad"))(loaded(1), loaded(2))["why"]
    )


def tried(folder: Path, first: bytes, second: bytes, envelope: bytes | None = None) -> tuple[Serving, list[Any]]:
    """A device that uses one model, after a trial of another."""
    told: list[tuple[dict[str, Any], bool]] = []
    link = SimpleNamespace(
        publish=lambda _, data, retain=False: told.append((json.loads(data), retain)), subscribe=lambda _: None,
        unsubscribe=lambda _: None, unacknowledged=0,
    )  # fmt: skip
    seen = seen_by(models.load(second, statement(second, 2)))
    made = Serving(predicting(folder), cast(MqttConnection, link), judge=judge(lambda: seen, None))
    for number, data, purpose in ((1, first, "release"), (2, second, TRIAL)):
        one = statement(data, number)
        made._release(envelope if envelope and number == 2 else sealed(one, CA, purpose))
        for i in range(one.pieces):
            made._piece(one.sha256, str(i), data[i * CHUNK_BYTES : (i + 1) * CHUNK_BYTES])
    return made, told


def test_a_trial_is_judged_and_changes_nothing_of_what_is_in_use(tmp_path: Path) -> None:
    first = onnx_model(1)
    second = onnx_model(2)
    made, told = tried(tmp_path, first, second)
    body, kept = told[-1]
    assert not kept  # no broker keeps it
    found = judgement(body["judged"], "d0", Signer(member(tmp_path, CA, "releases"), "releases"))
    assert (body["state"], body["version"], found["new"]) == ("serving", 1, 1.0)
    assert (found["number"], found["used"]) == (2, 1)
    assert found["sha256"] == hashlib.sha256(second).hexdigest()
    assert made._model is not None
    assert made._model.statement.version == 1
    again, _ = made._slots.read()
    assert again.opened(again.statements[0]).version == 1
    third = onnx_model(3)
    made._release(sealed(statement(third, 3), CA, TRIAL))  # what was judged before makes room
    assert {path.stem for path in made._slots.folder.glob("*.onnx")} == {hashlib.sha256(first).hexdigest()}


def test_a_trial_that_a_broker_repeats_is_answered_but_not_judged_again(tmp_path: Path) -> None:
    first = onnx_model(1)
    second = onnx_model(2)
    third = onnx_model(3)
    made, told = tried(tmp_path, first, second)
    signer = Signer(member(tmp_path, CA, "releases"), "releases")
    judged = list[int]()
    made._judge = lambda model, _: judged.append(model.statement.number) or {"why": "counted"}  # type: ignore[func-returns-value]
    count = len(told)
    envelope = sealed(statement(second, 2), CA, TRIAL)
    for _ in range(300):
        made._release(envelope)
    assert judged == []
    answers = [judgement(body["judged"], "d0", signer) for body, _ in told[count:]]
    assert len(answers) == 300
    assert {(answer["number"], answer["new"]) for answer in answers} == {(2, 1.0)}
    newer = statement(third, 3)
    made._release(sealed(newer, CA, TRIAL))
    for i in range(newer.pieces):
        made._piece(newer.sha256, str(i), third[i * CHUNK_BYTES : (i + 1) * CHUNK_BYTES])
    assert judged == [3]
    count = len(told)
    made._release(envelope)  # older than the last trial
    assert (judged, len(told)) == ([3], count)
    for number in range(4, 4 + 3 * JUDGED):
        made._judged(b"", statement(third, number))
    assert len(made._judgements) == JUDGED


def test_a_statement_for_a_trial_releases_nothing_and_the_other_way_round() -> None:
    one = statement(b"model", 1)
    trial = sealed(one, CA, TRIAL)
    release = sealed(one, CA)
    assert (is_trial(trial), is_trial(release), is_trial(b"[" * 10_000)) == (True, False, False)
    bare = json.dumps({key: text for key, text in json.loads(trial).items() if key != "purpose"}).encode()
    for data, purpose in ((trial, "release"), (bare, "release"), (release, TRIAL)):
        with refused("signature", RefusedError):
            opened(data, CA.cert, "trial", "d0", purpose)


def test_a_trial_that_nobody_signed_or_that_is_old_is_not_judged(tmp_path: Path) -> None:
    first = onnx_model(1)
    second = onnx_model(2)
    stranger = authority.found("trial", authority.now())
    made, told = tried(tmp_path, first, second, sealed(statement(second, 2), stranger, TRIAL))
    assert (told[-1][0]["state"], told[-1][0]["version"]) == ("refused", 1)
    assert "judged" not in told[-1][0]
    count = len(told)
    made._model = models.load(first, statement(first, 9))
    made._release(sealed(statement(second, 8), CA, TRIAL))
    assert len(told) == count


# -- what the cloud makes of it ----------------------------------------------------------------------------------------

GOOD = {"figure": "accuracy", "samples": 40, "new": 0.75, "old": 0.5}
HOSTILE: list[tuple[dict[str, Any], str]] = [
    ({"new": 1.5}, "range"),
    ({"new": float("nan")}, "range"),
    ({"old": True}, "range"),
    ({"old": "0.5"}, "range"),
    ({"samples": 0}, "range"),
    ({"samples": 1 << 60}, "range"),
    ({"samples": 40.0}, "range"),
    ({"figure": "loss"}, "range"),
    ({"figure": ["x"] * 10_000}, "range"),
]


@pytest.mark.parametrize(("change", "message"), HOSTILE)
def test_a_judgement_that_cannot_be_is_refused(change: dict[str, Any], message: str) -> None:
    assert read(GOOD, ACCURACY) == Judgement(40, 0.75, 0.5)
    with refused(message, RefusedError):
        read(GOOD | change, ACCURACY)


def test_a_judgement_is_taken_from_the_device_that_signed_it_and_is_flat(tmp_path: Path) -> None:
    """A broker makes up none, nor repeats one of another trial; deep lists, once read, ended the gate when shown."""
    edge = cast(Any, SimpleNamespace(name="e0", devices=[SimpleNamespace(name="d0")]))
    own, other, cloud = (Signer(member(tmp_path, CA, name), name) for name in ("d0", "d1", "releases"))
    station = Station(edge, cast(Any, SimpleNamespace()), cloud)
    station.there.set()
    trial = statement(b"model", 7)
    body = {"sha256": trial.sha256, "number": 7, "used": 1, "figure": "accuracy", "samples": 40, "new": 0.9, "old": 0.5}
    sound = attested(body, own)
    known = cast(Any, SimpleNamespace(used={"d0": registry.Use(1, 1)}))

    def row(judged: object, name: str = "d0") -> dict[str, Any]:
        report = {"state": "serving", "number": 1, "version": 1, "why": "", "judged": judged}
        station.heard(f"fedfloor/trial/serving/{name}", json.dumps(report).encode())
        return gate._row(known, station, "d0", trial, ACCURACY)

    deep = own.sign(text := b'{"why": ' + b"[" * 900 + b"]" * 900 + b"}", JUDGEMENT)
    for judged, why in (
        (body, "refused: signature: it is not signed."),
        (attested(body, other), "refused: signature: 'd1' signed it, not 'd0'."),
        (sound | {"text": sound["text"].replace("0.9", "1.0")}, "signature: its signer is not a member"),
        (sound | {"seal": base64.b64encode(own.sign(sound["text"].encode())).decode()}, "its signer is not a member"),
        (sound | {"seal": "é"}, "form: it is not a signed judgement"),
        ({"text": text.decode(), "seal": base64.b64encode(deep).decode()}, "not a table of texts and numbers"),
    ):  # fmt: skip
        assert why in row(judged)["why"]
        assert not station.judged
    station.refused.clear()
    assert row(attested(body | {"number": 6}, own))["why"] == "it did not answer"  # an earlier trial's
    assert row(attested(body | {"used": 3}, own))["why"] == "it uses version 3, not 1"
    assert row(sound)["new"] == 0.9
    row(sound, "d1")
    assert [*station.reports] == [*station.judged] == ["d0"]
    revoked = authority.revocations(CA, [(authority.certificate(tmp_path / "d0.crt").serial_number, authority.now())],
                                    authority.now())  # fmt: skip
    (tmp_path / "revoked.crl").write_bytes(revoked)
    station.judged.clear()
    assert "the certificate of 'd0' was revoked" in row(sound)["why"]


def test_the_reason_of_a_device_is_passed_on_cut_short() -> None:
    with pytest.raises(SettingError) as error:
        read({"why": "x" * 4000}, ACCURACY)
    assert len(str(error.value)) == gate.WHY_CHARS
    with refused("no-version"):
        read(GOOD | {"old": None}, ACCURACY)


def weighed(found: Sequence[Judgement], figure: str = "accuracy") -> bool | None:
    return gate._weighed({f"d{k}": one for k, one in enumerate(found)}, named(figure), [], 2).better


HONEST = [Judgement(40, 0.6, 0.5)] * 4


@pytest.mark.parametrize(
    ("hostile", "others", "better"),
    [
        (Judgement(1 << 50, 0.4, 0.5), HONEST, True),  # it claims to have more samples than all others
        (Judgement(1 << 50, 0.0, 0.3), HONEST, True),
        (Judgement(1 << 50, 0.6, 0.5), [Judgement(40, 0.4, 0.5)] * 4, False),
        (Judgement(1 << 50, None, 0.3), [Judgement(40, 0.8, 0.5)] * 4, True),
        (Judgement(40, 0.5, 0.5), [], False),  # no better is not better
    ],
)
def test_one_device_counts_as_one_whatever_it_claims(hostile: Judgement, others: list[Judgement], better: bool) -> None:
    assert weighed([hostile, *others]) is better


@pytest.mark.parametrize(("hostile", "honest"), [(Judgement(40, 0.0, 1.0), 0.52), (Judgement(40, 1.0, 0.0), 0.48)])
def test_one_device_with_a_huge_gain_neither_stops_nor_releases_a_model_and_is_named(
    hostile: Judgement, honest: float
) -> None:
    found = {f"d{k}": Judgement(40, honest, 0.5) for k in range(9)} | {"liar": hostile}
    made = gate._weighed(found, named("accuracy"), [], 2)
    assert made.better is None
    assert made.why.endswith("better only by the gains of liar, far from those of others")


@pytest.mark.parametrize("colluders", [1, 2, 3])
def test_a_minority_of_devices_never_decides_against_the_others(colluders: int) -> None:
    liars = [Judgement(1 << 50, 1.0, 0.0)] * colluders
    assert weighed([*liars, *[Judgement(40, 0.49, 0.5)] * (colluders + 1)]) is not True
    liars = [Judgement(1 << 50, 0.0, 1.0)] * colluders
    assert weighed([*liars, *[Judgement(40, 0.51, 0.5)] * (colluders + 1)]) is not False


@pytest.mark.parametrize("liars", [1, 2, 4])
def test_a_minority_releases_no_model_that_is_the_same_for_the_others(liars: int) -> None:
    assert weighed([*[Judgement(40, 1.0, 0.0)] * liars, *[Judgement(40, 0.5, 0.5)] * (liars + 1)]) is None


def test_of_figures_without_bounds_a_gain_is_a_share_of_both() -> None:
    honest = [Judgement(40, 8.0, 10.0)] * 10  # a gain of 1/9 each
    assert weighed(honest, "RMSE") is True
    assert weighed([*honest, Judgement(40, 1e9, 1e-9)], "RMSE") is True  # it loses 1 at most
    assert weighed([Judgement(40, 8.0, 8.0)], "RMSE") is False


def park_of(folder: Path, headline: Sequence[Any] = ("accuracy", 0.9)) -> Registry:
    """Four devices that use version 1; version 2 waits for its release."""
    known = registry.release(registered(registry.read(provisioned(folder)), onnx_model(1)), 1)
    about = registered(known, onnx_model(2)).entries[-1].about
    second = replace(
        known.entries[-1], action="register", about={**about, "run": {"folder": "r", "headline": headline}}
    )
    return replace(known, entries=(*known.entries, second))


Found = dict[str, tuple[int, float] | str]  # device → samples and the new figure, or why there are none


def rows_of(found: Found) -> list[dict[str, Any]]:
    return [
        {"device": name, "samples": None, "new": None, "in use": None, "why": one}
        if isinstance(one, str) else {"device": name, "samples": one[0], "new": one[1], "in use": 0.5, "why": None}
        for name, one in found.items()
    ]  # fmt: skip


CASES: list[tuple[Found, bool | None, str]] = [
    ({"d0": (40, 0.7), "d1": (40, 0.6), "d2": "it did not answer"}, True, "0.65, the one in use 0.5, on 80 samples"),
    ({"d0": (40, 0.4), "d1": (40, 0.5)}, False, "version 2 has accuracy 0.45"),
    (
        {"d0": "it has not trained yet.", "d1": "it did not answer"},
        None,
        "no device judged it by labelled samples of their own",
    ),
    ({"d0": (5, 0.9), "d1": (5, 0.9)}, None, "devices judged it by fewer than 20"),
    ({"d0": (1 << 50, 0.9), "d1": (1, 0.1)}, None, "devices judged it by fewer than 20"),  # of which one may be made up
    ({"d0": (900, 0.9), "d1": "it did not answer"}, None, "d0 alone of 4 devices judged it by labelled samples"),
]


@pytest.mark.parametrize(("found", "better", "why"), CASES)
def test_devices_decide_and_a_person_where_they_cannot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: Found, better: bool | None, why: str
) -> None:
    monkeypatch.setattr(gate, "judged", lambda *_: rows_of(found))
    made = gate.verdict(park_of(tmp_path), 2, (), 1.0)
    assert made.better is better
    assert why in made.why
    assert all(name in made.why for name, one in found.items() if isinstance(one, str) and better is not None)


def test_where_nothing_is_in_use_nothing_is_asked(tmp_path: Path) -> None:
    known = registered(registry.read(provisioned(tmp_path)), onnx_model(1))
    assert gate.verdict(known, 1, (), 0.0).better is True


def test_a_person_at_a_terminal_decides_and_a_script_needs_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "judged", lambda *_: rows_of({"d0": "it has not trained yet."}))
    known = park_of(tmp_path)
    with refused("no-release"):
        releasing._passed(known, 2, (), 1.0, as_json=False)
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
    put: list[str] = []
    for answer in (True, False):
        monkeypatch.setattr("typer.confirm", lambda text, answer=answer: put.append(text) or answer)
        if answer:
            assert releasing._passed(known, 2, (), 1.0, as_json=False)
        else:
            with refused("no-release"):
                releasing._passed(known, 2, (), 1.0, as_json=False)
    assert "Version 2 has accuracy 0.9000 on the cloud's test samples. Release it?" in put[0]


def test_a_schedule_announces_what_no_device_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = park_of(tmp_path)
    made = cast(Any, SimpleNamespace(_place=known.place, schedule=SimpleNamespace(release="all", canary=())))
    monkeypatch.setattr(schedule.registry, "read", lambda _: known)
    monkeypatch.setattr(schedule.registry, "register", lambda *_, **__: (known, 2))
    monkeypatch.setattr(gate, "judged", lambda *_: rows_of({"d0": "it has not trained yet."}))
    told = schedule.Scheduler._released(made, tmp_path)
    assert told.startswith("no device judged it by labelled samples of their own: fedfloor model release 2 --park")


# -- real processes ----------------------------------------------------------------------------------------------------

PLANT = """
name = "trial"
rounds = 4
data.samples_per_device = 240
evaluate.recent = 0.25
park = { devices = 3, factories = 1 }
model.name = "logistic"
method.name = "fedavg"
work = { epochs = 5, batch_size = 10, lr = 0.1 }
"""


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[TrialPark]:
    (tmp_path / "e.toml").write_text(PLANT)
    made = live.prepare(config.read(tmp_path / "e.toml", []), tmp_path / "park", predict=True)
    yield made
    live.down(made.folder)


@pytest.mark.slow
@pytest.mark.live
@needs_mosquitto
def test_devices_of_a_real_park_let_a_better_model_pass_and_no_worse_one(trial: TrialPark, tmp_path: Path) -> None:
    def released(run: Path, *more: str) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-m", "fedfloor", "model", "release", str(run), "--park", str(trial.place), *more]
        return subprocess.run(words, capture_output=True, text=True, check=False, timeout=200, stdin=subprocess.DEVNULL)

    crew = live.up(trial, lambda _: None)
    for words in (("--stop-after", "1"), ("--resume",)):
        assert live.follow(crew, live.cloud(crew, trial, *words), lambda _: None) == 0
        done = released(trial.run, "--json")
        assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["judged"]
    assert [row["samples"] for row in rows] == [60, 60, 60]
    assert sum(row["new"] - row["in use"] for row in rows) > 0
    what = config.read(trial.park.experiment, [])
    worse = replace(what, name="worse", rounds=1, seed=1)
    fedfloor.run(worse, tmp_path / "worse", ranks=1)
    done = released(tmp_path / "worse")  # of another seed, trained for one round
    assert done.returncode == 2
    assert "version 3 has accuracy 0." in done.stderr
    assert "180 samples that 3 devices held out: not released" in done.stderr
    assert {use.version for use in registry.read(trial.place).used.values()} == {2}
