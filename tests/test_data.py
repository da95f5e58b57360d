"""Data sets: equal and disjoint shares, order under the seed, contiguous streams, a cache that is whole or nothing."""

import os
import pickle
import socket
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.datasets import CIFAR10
from torchvision.datasets.utils import calculate_md5

from experiments.data import cache, cifar10
from experiments.data.cache import DataMissing
from experiments.data.cifar10 import Cifar10, crop_and_flip
from experiments.data.images import Digits
from experiments.data.stdlib_text import StdlibText
from experiments.data.text import PTBText

REAL = Path(os.environ.get("SIDCO_DATA", "/nowhere"))


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch):
    """Data and cache of this test alone; nothing outside answers."""
    monkeypatch.setenv("SIDCO_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("SIDCO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cifar10, "reachable", lambda url: False)
    return tmp_path


def make_ptb(root, prefix="tiny", words=400):
    folder = root / "data" / "tiny"
    folder.mkdir(parents=True)
    text = [f"w{i * i % 17}" for i in range(words)]
    for split, some in {"train": text, "valid": [*text[:50], "unseen"], "test": text[:50]}.items():
        lines = [" " + " ".join(some[i : i + 9]) + " \n" for i in range(0, len(some), 9)]
        (folder / f"{prefix}.{split}.txt").write_text("".join(lines))
    return PTBText(name="tiny", symbols=30, window=5)


def make_folders(root, train=40, valid=10):
    draw = np.random.default_rng(0)
    for split, count in {"train": train, "test": valid}.items():
        for i in range(count):
            folder = root / "data" / "cifar10" / split / ("cat" if i % 2 else "ant")
            folder.mkdir(parents=True, exist_ok=True)
            pixels = draw.integers(256, size=(32, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"{i:03d}.png")
    return Cifar10(classes=2, train_count=train, valid_count=valid)


def make_archive(root, monkeypatch):
    """The official archive in small: same names and layout, its own checksums."""
    folder = root / "cifar-10-batches-py"
    folder.mkdir()
    for i, (name, _) in enumerate(CIFAR10.train_list + CIFAR10.test_list):
        rows = np.arange(10, dtype=np.uint8)[:, None].repeat(3072, axis=1) + 10 * i
        (folder / name).write_bytes(pickle.dumps({"data": rows, "labels": list(range(10))}))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": list("abcdefghij")}))
    path = root / "data" / "cifar10" / CIFAR10.filename
    path.parent.mkdir(parents=True)
    with tarfile.open(path, "w:gz") as tar:
        tar.add(folder, folder.name)
    sums = {file.name: calculate_md5(file) for file in folder.iterdir()}
    monkeypatch.setattr(CIFAR10, "tgz_md5", calculate_md5(path))
    monkeypatch.setattr(CIFAR10, "train_list", [(name, sums[name]) for name, _ in CIFAR10.train_list])
    monkeypatch.setattr(CIFAR10, "test_list", [(name, sums[name]) for name, _ in CIFAR10.test_list])
    monkeypatch.setattr(CIFAR10, "meta", CIFAR10.meta | {"md5": sums["batches.meta"]})
    return path


# --- shares ---


@pytest.mark.case(13)
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_every_rank_takes_the_same_number_of_steps(world_size, folders):
    for data, size in ((make_ptb(folders), 4), (Digits(), 32)):
        data.prepare()
        steps = {len(list(data.train_batches(rank, world_size, size, 0, 0))) for rank in range(world_size)}
        assert steps == {data.steps_per_epoch(world_size, size)}


def test_image_shares_are_disjoint_and_cover_the_epoch():
    data = Digits()
    data.prepare()
    data.arrays["train_images"][:, 0, 0, :2] = np.array(divmod(np.arange(1500), 250)).T  # number the images
    seen = []
    for rank in range(3):
        for images, labels in data.train_batches(rank, 3, 20, epoch=4, seed=1):
            corner = (images[:, 0, 0, :2] * data.std[0] + data.mean[0]).round().long()
            index = corner[:, 0] * 250 + corner[:, 1]
            assert torch.equal(labels, torch.from_numpy(data.arrays["train_labels"])[index])
            seen += index.tolist()
    assert len(seen) == len(set(seen)) == 1500


def test_a_global_batch_does_not_depend_on_the_number_of_ranks():
    data = Digits()
    data.prepare()
    alone, _ = next(data.train_batches(0, 1, 40, 0, 0))
    shared = [next(data.train_batches(rank, 2, 20, 0, 0))[0] for rank in range(2)]
    assert torch.equal(torch.cat(shared), alone)


def test_order_follows_seed_and_epoch_and_leaves_the_global_state_alone(folders):
    data = make_folders(folders)
    data.prepare()
    before = torch.get_rng_state()

    def epoch(epoch, seed, rank=0):
        return torch.cat([images for images, _ in data.train_batches(rank, 2, 5, epoch, seed)])

    assert torch.equal(epoch(3, 7), epoch(3, 7))
    for other in (epoch(4, 7), epoch(3, 8), epoch(3, 7, rank=1)):
        assert not torch.equal(epoch(3, 7), other)
    assert torch.equal(torch.get_rng_state(), before)


def test_validation_is_whole_and_in_order():
    data = Digits()
    data.prepare()
    labels = torch.cat([labels for _, labels in data.valid_batches(100)])
    assert torch.equal(labels, torch.from_numpy(data.arrays["valid_labels"]))


@pytest.mark.parametrize("size", [1501, 4000])
def test_a_batch_larger_than_the_data_is_refused(size, folders):
    for data in (Digits(), make_ptb(folders)):
        data.prepare()
        with pytest.raises(ValueError, match=r"training\.batch_per_rank"):
            list(data.train_batches(0, 1, size, 0, 0))


# --- text ---


def test_streams_are_contiguous_and_disjoint(folders):
    data = make_ptb(folders)
    data.prepare()
    tokens = torch.from_numpy(data.arrays["train"]).long()
    length = len(tokens) // 6
    for rank in range(2):
        batches = list(data.train_batches(rank, 2, 3, epoch=0, seed=0))
        inputs, targets = (torch.cat(part) for part in zip(*batches, strict=True))  # (steps * window, B)
        assert torch.equal(inputs[1:], targets[:-1])
        for stream in range(3):
            start = (3 * rank + stream) * length
            assert torch.equal(inputs[:, stream], tokens[start : start + len(inputs)])
        assert {part.shape for batch in batches for part in batch} == {(5, 3)}


def test_windows_stop_where_the_last_target_is_missing(folders):
    data = make_ptb(folders)
    data.prepare()
    for count, steps in ((5, 0), (6, 1), (10, 1), (11, 2)):  # one stream: window 5 needs 6 words, two need 11
        data.arrays["valid"] = np.arange(count, dtype=np.int32)
        assert len(list(data.valid_batches(1))) == steps


def test_ptb_vocabulary_is_by_count_then_alphabet_and_unseen_words_are_unknown(folders):
    data = make_ptb(folders)
    data.prepare()
    text = [f"w{i * i % 17}" for i in range(400)]
    words = sorted(set(text), key=lambda word: (-text.count(word), word))
    vocabulary = data.arrays["vocabulary"].tolist()
    assert vocabulary == ["<unk>", "<eos>", *words]
    assert [vocabulary[i] for i in data.arrays["train"][:11]] == [*text[:9], "<eos>", text[9]]
    assert [vocabulary[i] for i in data.arrays["valid"][-2:]] == ["<unk>", "<eos>"]


def test_ptb_refuses_more_symbols_than_the_model_has(folders):
    make_ptb(folders)
    with pytest.raises(ValueError, match="at most 5 symbols"):
        PTBText(name="tiny", symbols=5).prepare()


def test_ptb_refuses_two_sets_in_one_folder(folders):
    data = make_ptb(folders)
    (folders / "data" / "tiny" / "other.train.txt").write_text("a b\n")
    with pytest.raises(DataMissing, match=r"exactly one .*other\.train\.txt.*tiny\.train\.txt"):
        data.prepare()


def test_stdlib_text_by_hand(folders):
    code = folders / "code"
    (code / "test").mkdir(parents=True)
    (code / "test" / "left_out.py").write_text("absent\n")
    for i in range(30):  # one in 20 validates, by the hash of the name
        (code / f"m{i}.py").write_text(f"def Name{i}():\n\n    return 0x1F + {i}  # Ünicode\n")
    data = StdlibText(folder=str(code), symbols=11, window=2)
    data.prepare()
    vocabulary = data.arrays["vocabulary"].tolist()
    assert len(vocabulary) == 11
    assert "absent" not in vocabulary
    spoken = [vocabulary[i] for i in data.arrays["train"][:14]]
    assert spoken == ["def", "<unk>", "(", ")", ":", "<eos>", "return", "N", "+", "N", "#", "ünicode", "<eos>", "def"]
    assert len(data.arrays["train"]) + len(data.arrays["valid"]) == 30 * 13
    assert len(data.arrays["valid"]) > 0


def test_the_standard_library_fills_the_vocabulary(folders):
    data = StdlibText()
    assert data.prepare() == StdlibText().prepare()
    assert len(data.arrays["vocabulary"]) == 10_000
    assert len(data.arrays["train"]) > 1_000_000
    assert (data.arrays["valid"] == 0).mean() < 0.1


# --- images ---


def test_crops_are_shifted_or_mirrored_windows_of_the_padded_image():
    images = torch.arange(1, 1 + 6 * 2 * 8 * 8).view(6, 2, 8, 8)
    out = crop_and_flip(images, torch.Generator().manual_seed(0), padding=2)
    padded = torch.nn.functional.pad(images, (2, 2, 2, 2))
    drawn = set()
    for image, source in zip(out, padded, strict=True):
        windows = {(y, x): source[:, y : y + 8, x : x + 8] for y in range(5) for x in range(5)}
        fits = [
            (*at, mirror)
            for at, window in windows.items()
            for mirror in (False, True)
            if torch.equal(image, window.flip(2) if mirror else window)
        ]
        assert len(fits) == 1
        drawn |= set(fits)
    assert len(drawn) > 3
    assert {mirror for *_, mirror in drawn} == {False, True}


def test_class_folders_are_labelled_by_the_alphabet(folders):
    data = make_folders(folders)
    data.prepare()
    assert data.arrays["train_labels"].tolist() == [0] * 20 + [1] * 20
    with Image.open(folders / "data" / "cifar10" / "test" / "cat" / "001.png") as image:
        assert np.array_equal(data.arrays["valid_images"][5], np.asarray(image).transpose(2, 0, 1))
    images, _ = next(data.valid_batches(10))
    assert images.shape == (10, 3, 32, 32)
    assert images.dtype == torch.float32
    assert images.abs().max() < 3


def test_a_partial_folder_is_refused(folders):
    data = make_folders(folders)
    data.prepare()
    (folders / "data" / "cifar10" / "test" / "cat" / "001.png").unlink()
    with pytest.raises(DataMissing, match=r"got 9 images of 2 classes in test/.*40 and 10 images, 2 classes"):
        data.prepare()


def test_an_image_cut_short_is_refused(folders):
    data = make_folders(folders)
    file = folders / "data" / "cifar10" / "train" / "ant" / "004.png"
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(DataMissing, match=r"004\.png"):
        data.prepare()


def test_classes_must_be_what_the_data_has():
    with pytest.raises(ValueError, match=r"expected 1 channels and 7 classes, got 1 and 10"):
        Digits(classes=7).prepare()


def test_the_official_archive_needs_no_network_where_it_lies_here(folders, monkeypatch):
    make_archive(folders, monkeypatch)
    data = Cifar10()
    assert data.prepare() == data.prepare()
    assert data.arrays["train_images"].shape == (50, 3, 32, 32)
    assert data.arrays["valid_labels"].tolist() == list(range(10))
    assert (data.arrays["train_images"][13] == 13).all()
    assert {file.name for file in (folders / "data" / "cifar10").iterdir()} == {
        CIFAR10.filename,
        CIFAR10.base_folder,
    }


def test_a_damaged_official_folder_is_refused(folders, monkeypatch):
    make_archive(folders, monkeypatch)
    Cifar10().prepare()
    file = folders / "data" / "cifar10" / CIFAR10.base_folder / "data_batch_3"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(DataMissing, match="a damaged cifar-10-batches-py"):
        Cifar10().prepare()


# --- the cache ---


@pytest.mark.case(60)
@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b[:500] + b"x" + b[501:]])
def test_a_damaged_cache_is_refused_by_ranks_and_rebuilt_by_the_launcher(damage, folders):
    data = make_ptb(folders)
    identity = data.prepare()
    (file,) = (folders / "cache" / "prepared").iterdir()
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(DataMissing, match=r"Call prepare\(\)"):
        data.steps_per_epoch(1, 1)
    assert data.prepare() == identity
    assert data.steps_per_epoch(1, 1) > 0


@pytest.mark.case(60)
def test_a_killed_preparation_leaves_nothing(folders, monkeypatch):
    def killed(file, **arrays):
        file.write(b"half of it")
        raise KeyboardInterrupt

    data = make_ptb(folders)
    monkeypatch.setattr(cache.np, "savez", killed)
    with pytest.raises(KeyboardInterrupt):
        data.prepare()
    assert list((folders / "cache" / "prepared").iterdir()) == []


@pytest.mark.case(60)
def test_preparation_builds_once_and_ranks_never(folders, monkeypatch):
    identity = make_ptb(folders).prepare()

    def fail(self):
        raise AssertionError("built again")

    monkeypatch.setattr(PTBText, "build", fail)
    data = PTBText(name="tiny", symbols=30, window=5)
    assert data.prepare() == identity
    assert len(list(data.train_batches(0, 1, 1, 0, 0))) > 0


def test_changed_files_are_read_again_and_have_another_identity(folders):
    data = make_ptb(folders)
    identity = data.prepare()
    with (folders / "data" / "tiny" / "tiny.train.txt").open("a") as file:
        file.write("w1 w2\n")
    assert data.prepare() != identity


# --- nothing there ---


@pytest.mark.case(61)
@pytest.mark.parametrize(
    ("data", "said"),
    [
        (PTBText(name="ptb"), ["ptb", "<prefix>.train.txt", "benchmark=lstm_stdlib"]),
        (PTBText(name="pd_lm"), ["pd_lm", "<prefix>.train.txt", "benchmark=lstm_stdlib"]),
        (Cifar10(), ["cifar10", "<class>", "cifar-10-python.tar.gz", "does not answer", "benchmark=resnet20_digits"]),
    ],
    ids=["ptb", "pd_lm", "cifar10"],
)
def test_missing_data_says_where_what_and_what_else(data, said, folders):
    with pytest.raises(DataMissing) as caught:
        data.prepare()
    for words in (str(folders / "data" / said[0]), *said, "SIDCO_DATA"):
        assert words in str(caught.value)


@pytest.mark.case(61)
def test_a_download_that_breaks_off_is_missing_data(folders, monkeypatch):
    def broken(*args, **kwargs):
        raise TimeoutError("timed out")

    monkeypatch.setattr(cifar10, "reachable", lambda url: True)
    monkeypatch.setattr("urllib.request.urlopen", broken)
    with pytest.raises(DataMissing, match="timed out"):
        Cifar10().prepare()
    assert socket.getdefaulttimeout() is None
    assert list((folders / "data" / "cifar10").iterdir()) == []


@pytest.mark.case(61)
@pytest.mark.parametrize("answer", ["refused", "silent"])
def test_a_server_that_does_not_answer_is_given_up(answer, monkeypatch):
    monkeypatch.undo()  # the real `reachable`
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        if answer == "silent":
            server.listen()
        assert not cifar10.reachable(f"http://127.0.0.1:{server.getsockname()[1]}/", seconds=0.3)


# --- what people have ---


@pytest.mark.skipif(not (REAL / "pd_lm").is_dir(), reason="needs pd_lm/ in $SIDCO_DATA")
def test_real_pd_lm(monkeypatch):
    monkeypatch.setenv("SIDCO_DATA", str(REAL))
    data = PTBText(name="pd_lm")
    data.prepare()
    sizes = {name: len(array) for name, array in data.arrays.items()}
    assert sizes == {"vocabulary": 10_000, "train": 962_378, "valid": 79_047}


@pytest.mark.skipif(not (REAL / "cifar10").is_dir(), reason="needs cifar10/ in $SIDCO_DATA")
def test_real_cifar10(monkeypatch):
    monkeypatch.setenv("SIDCO_DATA", str(REAL))
    data = Cifar10()
    data.prepare()
    assert np.bincount(data.arrays["train_labels"]).tolist() == [5000] * 10
    assert data.steps_per_epoch(8, 512) == 12
    pixels = data.arrays["train_images"][::10].astype(np.float32)
    assert np.allclose(pixels.mean((0, 2, 3)), data.mean, atol=1.5)
    assert np.allclose(pixels.std((0, 2, 3)), data.std, atol=1.5)
