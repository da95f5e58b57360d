"""ImageNet in small: shares, order, crops, and what is said of a tree that is not whole; noise in its place."""

import numpy as np
import pytest
import torch
from data_sets import make_imagenet
from PIL import Image

from experiments.build import build, check
from experiments.data.cache import DataMissing
from experiments.data.imagenet import MEAN, STD, ImageNet
from experiments.data.synthetic import SyntheticText

pytestmark = pytest.mark.usefixtures("folders")


def numbers(images):
    """Which images these are: each is of one colour, which no crop changes."""
    grey = (images * torch.tensor(STD).view(3, 1, 1) + torch.tensor(MEAN).view(3, 1, 1)) * 25.5
    assert torch.allclose(grey, grey[:, :1, :1, :1].expand_as(grey), atol=1e-3)
    return grey[:, 0, 0, 0].round().int().tolist()


def noisy(folders, train=8, **more):
    """The same with images in which no two places are alike."""
    data = make_imagenet(folders, train=train, **more)
    draw = np.random.default_rng(0)
    for file in sorted((folders / "data" / "imagenet").rglob("*.png")):
        Image.fromarray(draw.integers(256, size=(24, 31, 3), dtype=np.uint8)).save(file)
    data.prepare()
    return data


def epoch(data, number=0, seed=1, rank=0, world_size=2, size=2):
    return list(data.train_batches(rank, world_size, size, number, seed))


@pytest.mark.case(13)
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_every_rank_takes_the_same_number_of_steps_and_images_of_its_own(folders, world_size):
    data = make_imagenet(folders)
    data.prepare()
    seen = []
    for rank in range(world_size):
        batches = epoch(data, rank=rank, world_size=world_size)
        assert len(batches) == data.steps_per_epoch(world_size, 2) == 6 // world_size
        for images, labels in batches:
            assert (images.shape, images.dtype, labels.dtype) == ((2, 3, 7, 7), torch.float32, torch.int64)
            assert [number % 3 for number in numbers(images)] == labels.tolist()
            seen += numbers(images)
    assert sorted(seen) == list(range(12)), "all images once"


def test_a_global_batch_does_not_depend_on_the_number_of_ranks(folders):
    data = noisy(folders)
    alone = epoch(data, world_size=1, size=4)
    shared = [epoch(data, rank=rank) for rank in range(2)]
    for step, (images, labels) in enumerate(alone):
        assert torch.equal(torch.cat([batches[step][0] for batches in shared]), images)
        assert torch.equal(torch.cat([batches[step][1] for batches in shared]), labels)


@pytest.mark.parametrize("decoders", [0, 2])
def test_order_and_crops_follow_seed_and_epoch_in_any_process(folders, decoders):
    data, before = noisy(folders, decoders=decoders), torch.get_rng_state()
    once, again = epoch(data, 3, 7), epoch(noisy(folders), 3, 7)
    for (images, labels), (same_images, same_labels) in zip(once, again, strict=True):
        assert torch.equal(images, same_images)
        assert torch.equal(labels, same_labels)
    whole = torch.cat([images for images, _ in once])
    for other in (epoch(data, 4, 7), epoch(data, 3, 8), epoch(data, 3, 7, rank=1)):
        assert not torch.equal(torch.cat([images for images, _ in other]), whole)
    assert torch.equal(torch.get_rng_state(), before), "the global random state was touched"


def test_an_epoch_crops_an_image_anew_and_mirrors_some(folders):
    data = noisy(folders, train=1, classes=1, valid=1)
    views = [epoch(data, number, world_size=1, size=1)[0][0] for number in range(8)]
    assert len({view.numpy().tobytes() for view in views}) == 8


def test_validation_is_whole_in_one_order_and_cropped_in_the_centre(folders):
    data = make_imagenet(folders)
    data.prepare()
    batches = list(data.valid_batches(4))
    assert [len(labels) for _, labels in batches] == [4, 2]
    found = [number for images, _ in batches for number in numbers(images)]
    assert sorted(found) == list(range(6))
    assert [number % 3 for number in found] == torch.cat([labels for _, labels in batches]).tolist()
    assert found != sorted(found), "listed by class, the first batches would hold one class alone"
    assert found == [number for images, _ in data.valid_batches(6) for number in numbers(images)]

    file = next((folders / "data" / "imagenet" / "val").rglob("000.png"))
    stripes = np.zeros((8, 16, 3), np.uint8)  # the shorter edge is side * 8 / 7: nothing is resized
    stripes[:, 4:12] = 255  # the middle; of the eight, rows and columns, seven are kept
    Image.fromarray(stripes).save(file)
    (image,) = [images[i] for images, _ in data.valid_batches(6) for i in range(6) if found[i] == 0]
    assert (image > 0).all()


# --- what is not whole ---


@pytest.mark.case(60)
def test_ranks_read_what_one_process_listed(folders, monkeypatch):
    data = make_imagenet(folders)
    identity = data.prepare()

    def fail(self, split):
        raise AssertionError("listed again")

    monkeypatch.setattr(ImageNet, "_listed", fail)
    assert len(epoch(make_imagenet(folders))) == 3
    assert make_imagenet(folders).prepare() == identity


def test_ranks_refuse_what_was_not_prepared(folders):
    with pytest.raises(DataMissing, match=r"Call prepare\(\)"):
        epoch(make_imagenet(folders))


@pytest.mark.case(60)
@pytest.mark.parametrize(
    ("damage", "got"),
    [
        (lambda root: next(root.glob("train/n001/*")).unlink(), r"got 11 images of 3 classes in .*train .a copy cut"),
        (lambda root: [file.unlink() for file in root.glob("val/n002/*")], "got .*n002"),
        (lambda root: (root / "val" / "n002").rename(root / "val" / "other"), "in one of the two .* only: n002, other"),
        (lambda root: (root / "val").rename(root / "validation"), r"got no .*imagenet.val\."),
    ],
    ids=["a file", "a class", "another class", "a folder"],
)
def test_a_tree_that_is_not_whole_is_refused_though_it_was_once(folders, damage, got):
    data, root = make_imagenet(folders), folders / "data" / "imagenet"
    data.prepare()
    damage(root)
    with pytest.raises(DataMissing, match=got) as caught:
        data.prepare()
    for words in (str(root), "{train,val}/<class>/", "12 and 6 images, 3 classes", "image-net.org", "SIDCO_DATA"):
        assert words in str(caught.value)
    assert "benchmark=resnet50_synthetic" in str(caught.value)


@pytest.mark.parametrize("decoders", [0, 2])
def test_an_image_cut_short_is_named(folders, decoders):
    data = noisy(folders, decoders=decoders)
    (file,) = (folders / "data" / "imagenet" / "train").rglob("005.png")
    file.write_bytes(file.read_bytes()[:300])
    with pytest.raises(DataMissing, match=r"expected an image, got .*005\.png"):
        epoch(data, world_size=1)


def test_the_whole_set_has_a_thousand_steps_an_epoch_before_anybody_has_it():
    assert ImageNet().steps_per_epoch(8, 160) == 1000
    with pytest.raises(ValueError, match=r"lower training\.batch_per_rank"):
        ImageNet(train_count=10).steps_per_epoch(2, 6)


# --- noise in its place ---


@pytest.mark.parametrize(
    ("name", "shapes", "steps"),
    [
        ("synthetic_cifar10", [(4, 3, 32, 32), (4,)], 6250),
        ("synthetic_imagenet", [(4, 3, 224, 224), (4,)], 160_145),
        ("synthetic_text", [(35, 4), (35, 4)], (929_589 // 8 - 1) // 35),
    ],
)
def test_noise_has_the_shapes_of_the_data(composed, name, shapes, steps):
    model = {"synthetic_text": "lstm"}.get(name, "vgg16")
    config = check(composed(f"dataset={name}", f"model={model}"))
    data = build(config["dataset"])
    assert len(data.prepare()) == 64
    assert data.steps_per_epoch(2, 4) == steps
    batch = next(data.train_batches(0, 2, 4, 0, 0))
    assert [part.shape for part in batch] == shapes
    assert int(batch[1].max()) < config["dataset"].get("classes", config["dataset"].get("symbols"))
    assert [part.shape for part in next(data.valid_batches(4))] == shapes


def test_noise_is_the_same_for_the_same_rank_seed_and_epoch_only():
    data, before = SyntheticText(symbols=50, window=5, train_count=200, valid_count=40), torch.get_rng_state()

    def first(rank=0, number=0, seed=0):
        return next(data.train_batches(rank, 2, 3, number, seed))[0]

    assert torch.equal(first(), first())
    for other in (first(rank=1), first(number=1), first(seed=1)):
        assert not torch.equal(first(), other)
    assert torch.equal(torch.get_rng_state(), before)
    assert len(list(data.train_batches(1, 2, 3, 0, 0))) == data.steps_per_epoch(2, 3) == 6
    assert len(list(data.valid_batches(4))) == 1
    with pytest.raises(ValueError, match=r"smaller training\.batch_per_rank"):
        data.train_batches(0, 2, 100, 0, 0)
