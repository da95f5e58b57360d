"""Data sets: equal and disjoint shares, order under the seed, contiguous streams, a cache that is whole or nothing."""

import numpy as np
import pytest
import torch
from data_sets import make_archive, make_folders, make_ptb
from PIL import Image
from torchvision.datasets import CIFAR10

from experiments.data.cache import DataMissing
from experiments.data.cifar10 import Cifar10, crop_and_flip
from experiments.data.images import Digits
from experiments.data.stdlib_text import StdlibText
from experiments.data.text import PTBText

pytestmark = pytest.mark.usefixtures("folders")


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
    assert sorted(data.arrays["train_labels"].tolist()) == [0] * 20 + [1] * 20
    for label, name in enumerate(("ant", "cat")):
        for file in (folders / "data" / "cifar10" / "test" / name).iterdir():
            with Image.open(file) as image:
                same = (data.arrays["valid_images"] == np.asarray(image).transpose(2, 0, 1)).all((1, 2, 3))
            assert data.arrays["valid_labels"][same].tolist() == [label]
    assert set(data.arrays["valid_labels"][:5]) == {0, 1}, "the first batches of validation hold every class"
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
