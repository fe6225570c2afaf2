"""Runs become versions: what a version records, one model for all devices, and one for each."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

import fedfloor
from fedfloor import config
from fedfloor.base.errors import SettingError
from fedfloor.rollout import model, registry
from rollouts import provisioned

pytestmark = pytest.mark.slow


def run(folder: Path, method: str) -> Path:
    table = {"rounds": 1, "data": {"name": "labels", "samples_per_device": 40}, "model": {"name": "logistic"},
             "park": {"devices": 4, "factories": 2}, "method": {"name": method}}  # fmt: skip
    fedfloor.run(config.from_table(table), folder / method, ranks=1)
    return folder / method


def test_a_version_records_what_it_was_made_of(tmp_path: Path) -> None:
    out = provisioned(tmp_path)
    made = run(tmp_path, "fedavg")
    known, number = registry.register(registry.read(out), made)
    (version,) = known.versions.values()
    last = json.loads((made / "ledger.jsonl").read_text().splitlines()[-1])
    assert (number, version.network, version.run["round"]) == (1, "logistic", 1)
    assert version.run["plan_hash"] == last["plan_hash"]
    assert version.run["headline"] == ["accuracy", last["accuracy"]]
    for name in ("experiment.toml", "ledger.jsonl", "evaluation.json", "model.safetensors"):
        assert version.run[f"{name.partition('.')[0]}_sha256"] == hashlib.sha256((made / name).read_bytes()).hexdigest()
    said = registry.release(known, 1, ["d0"]).statement("d0")
    assert model.load(known.data(said.sha256), said).shape == (1, 28, 28)
    assert registry.register(known, made) == (known, 1)  # once more, it is the same version


def test_each_device_gets_its_own_model_of_a_personal_run(tmp_path: Path) -> None:
    out = provisioned(tmp_path, devices=5)
    known, _ = registry.register(registry.read(out), run(tmp_path, "fedper"))
    assert set(known.versions[1].files) == {"d0", "d1", "d2", "d3"}  # by their numbers
    now = registry.release(known, 1, ["d0", "d1"])
    assert now.statement("d0").sha256 != now.statement("d1").sha256
    with pytest.raises(SettingError, match="version 1 has no model or no statistics for d4"):
        registry.release(now, 1)


def test_a_run_that_is_no_better_than_the_version_in_use_is_named(tmp_path: Path) -> None:
    known, _ = registry.register(registry.read(provisioned(tmp_path)), run(tmp_path, "fedavg"))
    known = registry.release(known, 1, ["d0"])
    version = known.versions[1]

    def judged(name: str, value: float | None, data: str | None = version.run["data_sha256"]) -> str:
        facts = {**version.run, "headline": [name, value], "data_sha256": data}
        more = replace(known)
        vars(more)["versions"] = {1: version, 2: replace(version, version=2, run=facts)}
        return registry.no_better(more, 2)

    before = float(version.run["headline"][1])
    assert f"version 2 has accuracy {before:.4f}, version 1, which is in use, {before:.4f}" in judged(
        "accuracy", before
    )
    assert judged("accuracy", before + 0.1) == ""
    assert judged("accuracy", before - 0.1, "of other data") == ""
    assert judged("macro-F1", 0.0) == ""
    for diverged in (None, float("nan"), float("inf")):
        assert f"version 2 has no metric, version 1, which is in use, accuracy {before:.4f}" in judged("RMSE", diverged)
    assert registry.no_better(known, 1) == ""


def test_versions_are_mirrored_in_mlflows_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    from mlflow import MlflowClient

    from fedfloor.rollout.mirror import mirror

    uri = (tmp_path / "store").as_uri()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    known, _ = registry.register(registry.read(provisioned(tmp_path)), run(tmp_path, "fedavg"))
    client = MlflowClient(tracking_uri=uri, registry_uri=uri)
    assert mirror(known) == (uri, [1])
    (one,) = client.search_model_versions(f"name='{known.park}'")
    facts = known.versions[1]
    assert one.tags["fedfloor.version"] == "1"
    assert one.tags["fedfloor.plan_hash"] == facts.run["plan_hash"]
    sha256, size = facts.file("d0")
    (stored,) = client.list_artifacts(one.run_id)
    assert (stored.path, stored.file_size) == (f"{sha256}.onnx", size)
    known = registry.release(known, 1, canary=["d0"])
    assert mirror(known) == (uri, [])
    assert client.get_model_version_by_alias(known.park, "canary").version == one.version
    assert mirror(registry.promote(known)) == (uri, [])
    assert client.get_model_version_by_alias(known.park, "in-use").version == one.version
    with pytest.raises(Exception, match="canary"):
        client.get_model_version_by_alias(known.park, "canary")
