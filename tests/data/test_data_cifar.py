from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import refusals
from fedfloor.base.errors import SettingError
from fedfloor.data.published import cifar

# the published layouts with two records in each training file and one in the test file
TEN = replace(cifar.TEN, files=tuple((name, 1 + name.startswith("data")) for name, _ in cifar.TEN.files))
HUNDRED = replace(cifar.HUNDRED, files=(("train.bin", 2), ("test.bin", 1)))
SIZE = 3073  # bytes of a CIFAR-10 record


def record(*labels: int, seed: int) -> bytes:
    return bytes(labels) + np.random.default_rng(seed).integers(0, 256, 3072, np.uint8).tobytes()


def good() -> dict[str, bytes]:
    files = {f"data_batch_{i}.bin": record(i, seed=i) + record(9, seed=10 + i) for i in range(1, 6)}
    return {**files, "test_batch.bin": record(0, seed=99)}


def member(name: str, data: bytes = b"", /, **changed: object) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for key, value in changed.items():
        setattr(info, key, value)
    return info, data


def tar(members: list[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for info, data in members:
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def published(**changed: bytes | None) -> list[tuple[tarfile.TarInfo, bytes]]:
    """The members of the archive; ``test_batch=…`` replaces one of them, None leaves it out."""
    files = {name: changed.get(name.removesuffix(".bin"), data) for name, data in good().items()}
    return [member(f"cifar-10-batches-bin/{name}", data) for name, data in files.items() if data is not None]


def write(folder: Path, members: list[tuple[tarfile.TarInfo, bytes]]) -> Path:
    (folder / "cifar-10-binary.tar.gz").write_bytes(gzip.compress(tar(members)))
    return folder


def refused(folder: Path, words: str, layout: cifar.Layout = TEN) -> None:
    with pytest.raises(SettingError, match=words) as caught:
        cifar.load("cifar-10", folder, layout)
    assert str(folder) in str(caught.value)
    assert caught.value.exit_code == 2


def test_archive_plain_archive_folder_and_files_give_the_same(tmp_path: Path) -> None:
    digests = set()
    for way in ("packed", "plain", "folder", "files"):
        folder = tmp_path / way
        inner = folder / "cifar-10-batches-bin" if way == "folder" else folder
        inner.mkdir(parents=True)
        if way in ("packed", "plain"):
            data = tar(published()[::-1])  # the order in the archive makes no difference
            name = f"cifar-10-binary.tar{'.gz' if way == 'packed' else ''}"
            (folder / name).write_bytes(gzip.compress(data) if way == "packed" else data)
        else:
            for name, data in good().items():
                (inner / name).write_bytes(data)
        assert cifar.samples(folder, TEN) == (10, 1)
        found = cifar.load("cifar-10", folder, TEN)
        assert found.shape == (3, 32, 32)
        assert found.y.tolist() == [1, 9, 2, 9, 3, 9, 4, 9, 5, 9]
        assert found.y_test.tolist() == [0]
        assert found.y.dtype == np.int64
        assert found.classes == cifar.TEN.names
        assert found.take(np.array([2]), 0).tobytes() == good()["data_batch_2.bin"][1:SIZE]
        assert found.take_test(np.array([0])).tobytes() == good()["test_batch.bin"][1:]
        digests.add(found.digest)
    assert len(digests) == 1


def test_planes_are_red_green_blue_row_by_row(tmp_path: Path) -> None:
    # byte 1 + 1024·channel + 32·row + column of a record
    pixels = bytearray(3072)
    pixels[1024 + 32 * 5 + 7] = 200
    found = cifar.load("cifar-10", write(tmp_path, published(test_batch=b"\3" + bytes(pixels))), TEN)
    assert np.argwhere(found.take_test(np.array([0]))).tolist() == [[0, 1, 5, 7]]


def test_fine_labels_of_cifar_100(tmp_path: Path) -> None:
    data = {"train.bin": record(19, 99, seed=1) + record(0, 3, seed=2), "test.bin": record(4, 50, seed=3)}
    for name, content in data.items():
        (tmp_path / name).write_bytes(content)
    found = cifar.load("cifar-100", tmp_path, HUNDRED)
    assert (found.y.tolist(), found.y_test.tolist()) == ([99, 3], [50])
    assert found.take(np.array([1]), 0).tobytes() == data["train.bin"][3074 + 2 :]
    assert found.classes[99] == "99"
    names = [f"thing {i}" for i in range(100)]
    (tmp_path / "fine_label_names.txt").write_text("\n".join(names) + "\n\n")
    assert cifar.load("cifar-100", tmp_path, HUNDRED).classes == tuple(names)
    (tmp_path / "test.bin").write_bytes(record(20, 50, seed=3))
    refused(tmp_path, r"label 20 in record 0 \(byte 0 of it\): labels are 0 to 19", HUNDRED)
    (tmp_path / "test.bin").write_bytes(record(19, 100, seed=3))
    refused(tmp_path, r"label 100 in record 0 \(byte 1 of it\): labels are 0 to 99", HUNDRED)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"test_batch": None}, "holds no regular file test_batch.bin, which is part of the binary version of cifar-10"),
        ({"data_batch_3": None}, "holds no regular file data_batch_3.bin"),
        ({"data_batch_3": bytes(SIZE)}, "data_batch_3.bin: holds 1 records instead of 2"),
        ({"data_batch_3": bytes(3 * SIZE)}, "data_batch_3.bin: holds 3 records instead of 2"),
        ({"data_batch_3": b""}, "data_batch_3.bin: holds 0 records instead of 2"),
        ({"data_batch_3": bytes(2 * SIZE - 1)}, "incomplete or damaged: 6,145 bytes are no multiple of a record's"),
        ({"data_batch_3": bytes(SIZE) + record(10, seed=1)}, "data_batch_3.bin: label 10 in record 1: .* 0 to 9"),
    ],
)
def test_errors_name_archive_and_member(tmp_path: Path, changed: dict[str, bytes | None], words: str) -> None:
    refused(write(tmp_path, published(**changed)), words)
    loose = tmp_path / "loose"
    loose.mkdir()
    for info, data in published(**changed):
        (loose / Path(info.name).name).write_bytes(data)
    refused(loose, words)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"a\nb\n", "batches.meta.txt: 2 names for 10 classes"),
        (b"\xff\n" * 10, "batches.meta.txt: not a list of names"),
        (b"x\n" * 40_000, "80,000 bytes are too many for a list of 10 names"),
    ],
)
def test_names_of_the_classes(tmp_path: Path, text: bytes, words: str) -> None:
    refused(write(tmp_path, [member("x/batches.meta.txt", text), *published()]), words)


HOSTILE = {
    "a path from the root": {"name": "/test_batch.bin"},
    "a path upwards": {"name": "cifar-10-batches-bin/../../test_batch.bin"},
    "a symbolic link": {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd", "size": 0},
    "a hard link": {"type": tarfile.LNKTYPE, "linkname": "cifar-10-batches-bin/data_batch_1.bin", "size": 0},
    "a device": {"type": tarfile.CHRTYPE, "size": 0},
    "a folder": {"type": tarfile.DIRTYPE, "size": 0},
}


@pytest.mark.parametrize("changed", HOSTILE.values(), ids=HOSTILE)
def test_hostile_members_are_passed_over_and_nothing_is_written(tmp_path: Path, changed: dict[str, object]) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    bad = member("cifar-10-batches-bin/test_batch.bin", good()["test_batch.bin"], **changed)
    refused(write(inner, [*published(test_batch=None), bad]), "holds no regular file test_batch.bin")
    assert cifar.load("cifar-10", write(inner, [bad, *published()]), TEN).y_test.tolist() == [0]
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["cifar-10-binary.tar.gz"]


def test_a_member_twice_and_one_too_large_are_refused(tmp_path: Path) -> None:
    refused(write(tmp_path, [*published(), member("other/test_batch.bin", bytes(SIZE))]), "holds test_batch.bin twice")
    huge = tar(published())
    size_at = huge.index(b"%011o" % (2 * SIZE))  # the first member's length, in octal digits
    for promised in (SIZE * 2**30, 2**33 - 1):
        header = bytearray(huge)
        header[size_at : size_at + 11] = b"%011o" % (promised % 8**11)
        header[148:156] = b"%06o\0 " % (sum(header[:148]) + 8 * 32 + sum(header[156:512]))  # the header's checksum
        (tmp_path / "cifar-10-binary.tar.gz").write_bytes(gzip.compress(bytes(header)))
        refused(tmp_path, r"data_batch_1.bin: (holds .* records|incomplete or damaged)")


def test_an_archive_that_unpacks_to_far_more_is_refused(tmp_path: Path) -> None:
    bomb = [member("filler", bytes(cifar.SLACK + 11 * SIZE)), *published()]
    refused(write(tmp_path, bomb), "unpacks to more than .* bytes, far more than published")


SPOILED: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "cut short": (lambda packed: packed[:-2000], "cut short"),
    "cut before its checksum": (lambda packed: packed[:-8], "cut short"),
    "wrong checksum": (lambda packed: packed[:-8] + b"\0\0\0\0" + packed[-4:], "damaged gzip data"),
    "damaged in the middle": (lambda packed: packed[:9000] + b"\xff" * 50 + packed[9050:], "damaged|label|not a whole"),
    "tar cut in a member": (lambda packed: gzip.compress(gzip.decompress(packed)[:9000]), "not a complete tar archive"),
    "tar cut between members": (lambda packed: gzip.compress(gzip.decompress(packed)[:7168]), "no regular file data_b"),
    "a web page": (lambda packed: b"<html>not found</html>" * 99, "not a complete tar archive"),
    "nothing": (lambda packed: b"", "not a complete tar archive"),
    "nothing, packed": (lambda packed: gzip.compress(b""), "not a complete tar archive"),
}


@pytest.mark.parametrize(("spoil", "words"), SPOILED.values(), ids=SPOILED)
def test_damaged_archives(tmp_path: Path, spoil: Callable[[bytes], bytes], words: str) -> None:
    path = write(tmp_path, published()) / "cifar-10-binary.tar.gz"
    path.write_bytes(spoil(path.read_bytes()))
    refused(tmp_path, words)


def test_nothing_there_says_what_to_put_where(tmp_path: Path) -> None:
    for ask in (lambda: cifar.load("cifar-10", tmp_path, TEN), lambda: cifar.samples(tmp_path, TEN)):
        with refusals.refused("published-file-missing"):
            ask()


def test_samples_of_what_does_not_begin_right(tmp_path: Path) -> None:
    path = tmp_path / "cifar-10-binary.tar.gz"
    for spoiled in (b"", b"<html>", gzip.compress(b""), gzip.compress(b"x" * 600), b"\x1f\x8b\x08"):
        path.write_bytes(spoiled)
        with refusals.refused("published-file"):
            cifar.samples(tmp_path, TEN)
    path.unlink()
    (tmp_path / "data_batch_1.bin").write_bytes(bytes(2 * SIZE))
    with refusals.refused("published-file"):
        cifar.samples(tmp_path, TEN)
    (tmp_path / "data_batch_1.bin").write_bytes(bytes(2 * SIZE - 1))
    with refusals.refused("published-file"):
        cifar.samples(tmp_path, TEN)


@pytest.mark.slow
def test_cifar_10_as_published(data_root: Path) -> None:
    data = cifar.load("cifar-10", data_root / "cifar-10", cifar.TEN)
    assert np.bincount(data.y).tolist() == [5000] * 10  # Krizhevsky 2009: equal classes
    assert np.bincount(data.y_test).tolist() == [1000] * 10
    assert data.classes[6] == "frog"
    x = data.take(np.arange(50_000), 0)
    assert x.shape == (50_000, 3, 32, 32)
    means = x.mean(axis=(0, 2, 3)) / 255
    assert means == pytest.approx([0.4914, 0.4822, 0.4465], abs=5e-5)  # the means everybody normalises with
