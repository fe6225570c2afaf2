"""The journal of a park: what was edited, removed, exchanged or signed by another authority is noticed."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fedfloor.cli.app import app
from fedfloor.deploy import authority, journal, park_file, provision
from fedfloor.deploy.journal import FOLDER, HEAD
from fedfloor.rollout import registry
from refusals import refused
from rollouts import model, provisioned, registered


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A park with four entries in its journal: provisioned, and version 1 registered, released to d0, promoted."""
    place = provisioned(tmp_path)
    known = registered(registry.read(place), model())
    known = registry.release(known, 1, ["north"], ["d0"])
    registry.promote(known)
    return place


def entries(out: Path) -> list[journal.Entry]:
    return [*journal.read(out, authority.certificate(out / "authority/ca.crt"))]


def test_a_journal_holds_what_was_done(out: Path) -> None:
    found = entries(out)
    assert [one.action for one in found] == ["provision", "register", "release", "promote"]
    assert set(found[0].about["certificates"]) >= {"d0", "d3", "north", "broker-south", "broker-cloud", "cloud"}
    assert found[3].about == {"version": 1, "devices": ["d2"]}
    assert registry.audit(out) == (tuple(found), [])


def _edit(out: Path) -> None:
    path = out / FOLDER / "3.json"
    path.write_text(path.read_text().replace("d0", "d1"))


def _sign_alone(out: Path) -> None:
    """What somebody does who has no key but knows the format."""
    path = out / FOLDER / "3.json"
    body = json.loads(path.read_text())
    stranger = authority.found("trial", authority.now())
    path.write_text(json.dumps(body | {"signature": authority.sign(stranger, journal.PURPOSE, body["entry"])}))


def _exchange(out: Path) -> None:
    first, second = (out / FOLDER / f"{n}.json" for n in (3, 4))
    texts = first.read_text(), second.read_text()
    first.write_text(texts[1])
    second.write_text(texts[0])


def _cut(out: Path, head: str | None) -> None:
    """Remove the last entry, together with the head that names it, or with another head in its place."""
    (out / FOLDER / "4.json").unlink()
    (out / HEAD).unlink()
    if head is not None:
        (out / HEAD).write_text(head)


def _head_by(signer: authority.Authority, named: str, purpose: str = journal.HEADS) -> str:
    return json.dumps({"head": named, "signature": authority.sign(signer, purpose, named)})


def _cut_and_sign_alone(out: Path) -> None:
    stranger = authority.found("trial", authority.now())
    _cut(out, _head_by(stranger, f"3 {entries(out)[2].digest}"))


def _cut_and_sign_an_entry(out: Path) -> None:
    """The signature of an entry is not one of a head."""
    body = json.loads((out / FOLDER / "3.json").read_text())
    _cut(out, json.dumps({"head": body["entry"], "signature": body["signature"]}))


TAMPERED: dict[str, tuple[Callable[[Path], object], str]] = {
    "edited": (_edit, "journal"),
    "signed by a stranger": (_sign_alone, "journal"),
    "removed": (lambda out: (out / FOLDER / "2.json").unlink(), "journal"),
    "the last removed": (lambda out: (out / FOLDER / "4.json").unlink(), "journal"),
    "the last removed with the head": (lambda out: _cut(out, None), "journal"),
    "the last removed, and the head replaced by a text": (
        lambda out: _cut(out, f"3 {entries(out)[2].digest}"),
        "journal",
    ),
    "the last removed, and the head signed by a stranger": (_cut_and_sign_alone, "journal"),
    "the last removed, and the head made of an entry": (_cut_and_sign_an_entry, "journal"),
    "exchanged": (_exchange, "journal"),
    "no JSON": (lambda out: (out / FOLDER / "1.json").write_text("[]"), "journal"),
    "nested": (lambda out: (out / FOLDER / "1.json").write_text("[" * 100_000), "journal"),
}


@pytest.mark.parametrize("name", TAMPERED)
def test_a_registry_edited_by_hand_is_refused(out: Path, name: str) -> None:
    harm, words = TAMPERED[name]
    harm(out)
    with refused(words):
        registry.read(out)
    assert words in registry.audit(out)[1][0]


def test_a_model_that_was_exchanged_is_refused(out: Path) -> None:
    (path,) = (out / registry.MODELS).glob("*.onnx")
    path.write_bytes(model(seed=1))
    with refused("registry"):
        registry.read(out).data(path.stem)
    assert "changed after its registration" in registry.audit(out)[1][0]


def test_of_two_who_change_a_park_at_once_the_second_is_refused(out: Path) -> None:
    known = registry.read(out)
    registry.release(known, 1, ["south"])
    with refused("changed-meanwhile"):
        registry.rollback(registry.release(known, 1, ["d1"]))
    assert [one.action for one in entries(out)][4:] == ["release"]
    assert not [*(out / FOLDER).glob(".*.part")]


def test_a_process_that_was_killed_between_entry_and_head_harms_nothing(out: Path) -> None:
    head = (out / HEAD).read_text()
    registry.release(registry.read(out), 1, ["south"])
    (out / HEAD).write_text(head)
    assert len(registry.read(out).entries) == 5


def test_a_process_that_was_killed_before_the_first_head_harms_nothing(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in (out / FOLDER).glob("*.json"):
        path.unlink()
    (out / HEAD).unlink()
    ca = authority.load(out / "authority")
    link = os.link

    def killed(*places: Path) -> None:
        link(*places)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "link", killed)
    with pytest.raises(KeyboardInterrupt):
        journal.append(out, ca, (), "provision", {"certificates": {}})
    assert [one.action for one in entries(out)] == ["provision"]


def test_a_copy_of_the_registry_is_checked_without_a_head(out: Path, tmp_path: Path) -> None:
    shutil.copytree(out / "registry", tmp_path / "copy/registry")
    shutil.copy(out / "authority/ca.crt", tmp_path / "copy/ca.crt")
    assert registry.audit(tmp_path / "copy") == (tuple(entries(out)), [])


def test_a_journal_that_grows_while_it_is_read_is_in_order(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = registry.read(out)
    real = journal.read_entry

    def grow(path: Path, number: int, *rest: Any) -> journal.Entry:
        if number == 4 and len(list((out / FOLDER).glob("*.json"))) == 4:  # the last that the reader has listed
            registry.release(known, 1, ["south"])
        return real(path, number, *rest)

    monkeypatch.setattr(journal, "read_entry", grow)
    assert len(entries(out)) == 4
    assert len(entries(out)) == 5


def test_revocations_and_renewals_are_recorded(out: Path, tmp_path: Path) -> None:
    edge = registry.read(out).floor[0]
    park = park_file.ParkFile(
        "trial", tmp_path / "experiment.toml", park_file.CloudTable("127.0.0.1", 9),
        (park_file.FactoryTable("north", "127.0.0.1", edge.broker.port),),
        tuple(park_file.DeviceTable(f"d{k}", "north") for k in range(4)),
    )  # fmt: skip
    provision.provision(park, out, revoke=["d1"])
    provision.provision(park, out, revoke=["d1"])
    assert [(one.action, list(one.about["certificates"])) for one in entries(out)[4:]] == [("revoke", ["d1"])]
    provision.provision(park, out, renew=["d1"])
    assert entries(out)[-1].action == "provision"
    assert [*entries(out)[-1].about["certificates"]] == ["d1"]
    assert registry.audit(out)[1] == []


def test_a_certificate_that_the_journal_lacks_is_named(tmp_path: Path) -> None:
    out = provisioned(tmp_path)
    (out / FOLDER / "1.json").unlink()
    (out / HEAD).unlink()
    assert "provision of 'broker-cloud' is in authority/index.json, but not in the journal." in registry.audit(out)[1]


def test_audit_by_the_command_line(out: Path) -> None:
    done = CliRunner().invoke(app, ["park", "audit", "--park", str(out)])
    assert not done.exit_code
    assert "4 entries, all signed by the authority and in order" in done.stdout
    _edit(out)
    done = CliRunner().invoke(app, ["park", "audit", "--park", str(out), "--json"])
    assert done.exit_code == 1
    assert "3.json does not match its signature" in json.loads(done.stdout)["faults"][0]
