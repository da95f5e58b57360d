"""The benchmarks' models: parameter counts to the unit, shapes, shortcuts, carried state."""

import pytest
import torch
import torch.nn.functional as F

from experiments.build import build, check
from experiments.models.lstm import LSTMLanguageModel
from experiments.models.resnet import BasicBlock, ResNet20
from experiments.models.vgg import VGG16


def parameters(model):
    return sum(parameter.numel() for parameter in model.parameters())


def test_resnet20_has_the_papers_parameters():
    model = ResNet20()
    assert parameters(model) == 269_722
    weighted = [m for m in model.modules() if isinstance(m, torch.nn.Conv2d | torch.nn.Linear)]
    assert len(weighted) == 20


@pytest.mark.parametrize(("symbols", "size", "expected"), [(10_000, 1500, 66_034_000), (10_000, 256, 6_182_672)])
def test_lstm_has_the_papers_parameters(symbols, size, expected):
    with torch.device("meta"):  # the count needs no 264 MB
        model = LSTMLanguageModel(symbols, size, size)
    assert parameters(model) == expected


def test_every_weight_has_a_gradient():
    resnet = ResNet20(classes=3, in_channels=1)
    F.cross_entropy(resnet(torch.randn(4, 1, 8, 8)), torch.tensor([0, 1, 2, 0])).backward()
    lstm = LSTMLanguageModel(11, 6, 5, dropout=0.0)
    logits, _ = lstm(torch.arange(8).view(4, 2))
    logits.sum().backward()
    for model in (resnet, lstm):
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("side", [8, 32])
def test_resnet20_takes_small_images_of_any_size(side):
    assert ResNet20(classes=7, in_channels=1)(torch.randn(2, 1, side, side)).shape == (2, 7)


def test_shortcut_keeps_every_second_pixel_and_adds_zero_channels():
    block = BasicBlock(2, 4, stride=2)
    torch.nn.init.zeros_(block.norm2.weight)  # silences the two convolutions: only the shortcut is left
    x = torch.rand(1, 2, 4, 4)
    out = block(x)
    assert torch.equal(out[:, 1:3], x[:, :, ::2, ::2])
    assert not out[:, 0].any()
    assert not out[:, 3].any()


def test_resnet20_is_drawn_as_he_et_al_draw():
    weight = ResNet20().blocks[8].conv2.weight  # 64 -> 64 channels
    assert weight.std().item() == pytest.approx((2 / (64 * 9)) ** 0.5, rel=0.02)


def test_lstm_carries_its_state_over_a_cut():
    model = LSTMLanguageModel(11, 6, 5, dropout=0.5).eval()
    tokens = torch.randint(11, (8, 3))
    whole, _ = model(tokens)
    first, carry = model(tokens[:5])
    second, carry = model(tokens[5:], carry)
    torch.testing.assert_close(torch.cat([first, second]), whole)
    assert [state.shape for state in carry] == [(2, 3, 5), (2, 3, 5)]


def test_lstm_drops_out_in_training_only():
    model = LSTMLanguageModel(11, 6, 5, dropout=0.5)
    tokens = torch.randint(11, (4, 2))
    assert not torch.equal(model(tokens)[0], model(tokens)[0])
    model.eval()
    assert torch.equal(model(tokens)[0], model(tokens)[0])


# PAPER.md section 4: counts derived from the authors' released code, not printed in the paper
COUNTS = {
    "lstm_ptb": 66_034_000,
    "resnet20_cifar10": 269_722,
    "vgg16_cifar10": 14_728_266,
    "resnet50_imagenet": 25_557_032,
    "vgg19_imagenet": 143_667_240,
}


@pytest.mark.parametrize(("benchmark", "expected"), COUNTS.items())
def test_a_benchmark_has_the_parameters_of_the_released_code(composed, benchmark, expected):
    config = check(composed(f"benchmark={benchmark}"))
    with torch.device("meta"):
        model = build(config["model"])
        assert parameters(model) == expected
        if "side" in config["dataset"] or "cifar10" in benchmark:
            side = config["dataset"].get("side", 32)
            assert model(torch.empty(2, 3, side, side)).shape == (2, config["dataset"]["classes"])


@pytest.mark.parametrize("benchmark", ["vgg16_synthetic", "resnet50_synthetic", "vgg19_synthetic"])
def test_on_noise_the_model_is_whole(composed, benchmark):
    config = check(composed(f"benchmark={benchmark}"))
    whole = {"vgg16_synthetic": "vgg16_cifar10"}.get(benchmark, benchmark.replace("synthetic", "imagenet"))
    with torch.device("meta"):
        model = build(config["model"])
        assert parameters(model) == COUNTS[whole]
        side, size = config["dataset"]["side"], config["training"]["batch_per_rank"]
        assert model(torch.empty(size, 3, side, side)).shape == (size, config["dataset"]["classes"])


def test_vgg16_is_thirteen_convolutions_and_one_linear_layer():
    model = VGG16()
    kinds = [type(module) for module in model.modules()]
    assert [kinds.count(kind) for kind in (torch.nn.Conv2d, torch.nn.BatchNorm2d, torch.nn.Linear)] == [13, 13, 1]
    F.cross_entropy(model(torch.randn(3, 3, 32, 32)), torch.tensor([0, 1, 2])).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    weight = model.features[24].weight  # 256 -> 512 channels
    assert weight.shape == (512, 256, 3, 3)
    assert weight.std().item() == pytest.approx((2 / (256 * 9)) ** 0.5, rel=0.02)


def test_vgg16_takes_larger_images_and_three_channels_only():
    assert VGG16(classes=7)(torch.randn(2, 3, 64, 64)).shape == (2, 7)
    with pytest.raises(ValueError, match=r"3 channels, got 1: use dataset=cifar10"):
        VGG16(in_channels=1)
