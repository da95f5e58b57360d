"""Speech recognition against rates and losses worked out by hand, its model's laws, and whether it learns."""

import math
from itertools import pairwise

import pytest
import torch
from test_checkpoint import Memory
from torch import nn

from experiments.build import build, check
from experiments.data.speech import LETTERS
from experiments.data.synthetic_speech import SyntheticSpeech
from experiments.loop import Trainer
from experiments.models.deepspeech import DeepSpeech
from experiments.speech import SpeechRecognition, alignable, decoded
from sidco.compressors.topk import TopK
from sidco.feedback import ErrorFeedback
from sidco.workers import VirtualWorkers


def labels(text):
    return [LETTERS.index(letter) for letter in text]


def sure(*texts):
    """Logits (T, B, 29) of a model that is sure of one label a frame."""
    longest = max(map(len, texts))
    return torch.stack([torch.eye(29)[labels(text.ljust(longest, "_"))] * 9 for text in texts], dim=1)


def batch(*pairs):
    """`batch((frames, "TEXT"), …)`: inputs of ones, padded."""
    frames, texts = [size for size, _ in pairs], [text for _, text in pairs]
    letters = torch.zeros(len(pairs), max(1, *map(len, texts)), dtype=torch.long)
    for row, text in zip(letters, texts, strict=True):
        row[: len(text)] = torch.tensor(labels(text), dtype=torch.long)
    inputs = torch.zeros(len(pairs), 161, max(frames))
    for row, size in zip(inputs, frames, strict=True):
        row[:, :size] = torch.randn(161, size, generator=torch.Generator().manual_seed(size))
    return inputs, torch.tensor(frames), letters, torch.tensor([len(text) for text in texts])


class Frames(nn.Module):
    """One logit vector for all frames, as many frames out as in."""

    def __init__(self, says=None):
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(29))
        self.says = says

    def forward(self, inputs, lengths):
        if self.says is not None:
            return self.says, lengths
        return self.logits.expand(inputs.shape[2], len(inputs), 29), lengths


# --- decoding and rates ---


@pytest.mark.parametrize(
    ("frames", "text"),
    [("HHEE_LL_LLO", "HELLO"), ("____", ""), ("A_A", "AA"), ("AAA", "A"), ("_A B__", "A B"), ("A", "A")],
)
def test_greedy_decoding_by_hand(frames, text):
    assert decoded(sure(frames), torch.tensor([len(frames)])) == [text]


def test_decoding_stops_where_the_utterance_ends():
    assert decoded(sure("AB_C", "DE_F"), torch.tensor([2, 4])) == ["AB", "DEF"]


def test_error_rates_by_hand_over_batches_of_unequal_size():
    first = batch((7, "GO TO IT"), (7, "NO"))
    second = batch((7, "YES"))
    # GO TO IT -> GO TOT: a space and an I are lost, 2 of 8; two words for three, one of them wrong, 2 of 3
    # NO -> NO; YES -> YET: 1 of 3, 1 of 1. Rates are over all batches: 3 of 13 characters, 3 of 5 words
    batches = [first, second]
    heard = iter([sure("GO TO_T", "NNN_OO_"), sure("YYE_TT_")])
    model = Frames()
    model.forward = lambda inputs, lengths: (next(heard), lengths)
    found = SpeechRecognition().evaluate(model, batches)
    assert found == {"cer": pytest.approx(100 * 3 / 13), "wer": pytest.approx(100 * 3 / 5)}


def test_rates_of_silence_are_a_hundred_and_of_babble_more():
    assert SpeechRecognition().evaluate(Frames(sure("____")), [batch((4, "AB"))]) == {"cer": 100, "wer": 100}
    assert SpeechRecognition().evaluate(Frames(sure("ABCD")), [batch((4, "E"))]) == {"cer": 400, "wer": 100}


@pytest.mark.parametrize("batches", [[], [batch((4, ""))]])
def test_evaluation_of_nothing_is_an_error(batches):
    with pytest.raises(ValueError, match="at least one transcript"):
        SpeechRecognition().evaluate(Frames(sure("____")), batches)


@pytest.mark.parametrize("training", [True, False])
def test_evaluation_restores_the_mode(training):
    model = Frames(sure("A")).train(training)
    SpeechRecognition().evaluate(model, [batch((1, "A"))])
    assert model.training is training


# --- the loss ---


def test_loss_by_hand():
    # uniform over 29 labels: "A" in 2 frames is AA, A_, _A; "B" in 1 frame is B. The mean is over utterances.
    loss, skipped = SpeechRecognition().loss(Frames(), batch((2, "A"), (1, "B")), None)
    assert loss.item() == pytest.approx((-math.log(3 / 29**2) + math.log(29)) / 2)
    assert skipped == 0


def test_loss_is_taken_in_single_precision():
    model = Frames(torch.eye(29)[3].view(1, 1, 29).bfloat16())
    loss, _ = SpeechRecognition().loss(model, batch((1, "A")), None)
    assert loss.item() == pytest.approx(math.log(math.e + 28), abs=1e-6)  # half precision is off by 1e-2


CASES = [
    (3, "ABCD", False),
    (4, "ABCD", True),
    (2, "AA", False),
    (3, "AA", True),
    (5, "", False),
    (6, "AABB", True),
    (5, "AABB", False),
]


@pytest.mark.case(64)
@pytest.mark.parametrize(("frames", "text", "fits"), CASES)
def test_what_can_be_aligned(frames, text, fits):
    _, sizes, letters, lengths = batch((frames, text), (9, "ABCDE"))
    assert alignable(sizes, letters, lengths).tolist() == [fits, True]
    probabilities = torch.zeros(9, 2, 29).log_softmax(2)
    infinite = nn.functional.ctc_loss(probabilities, letters, sizes, lengths, reduction="none").isinf().tolist()
    assert infinite == [not fits and bool(text), False], "torch agrees"


@pytest.mark.case(64)
@pytest.mark.parametrize(("frames", "text", "fits"), CASES)
def test_what_cannot_be_aligned_is_left_out_and_counted(frames, text, fits):
    task, model = SpeechRecognition(), Frames()
    alone, _ = task.loss(model, batch((9, "ABCDE")), None)
    loss, skipped = task.loss(model, batch((9, "ABCDE"), (frames, text)), torch.tensor(5))
    loss.backward()
    assert model.logits.grad.isfinite().all()
    assert skipped == 5 + (not fits)
    assert (loss.item() == pytest.approx(alone.item())) is not fits
    assert task.summary([skipped, None, torch.tensor(2)]) == {"skipped_utterances": 7 + (not fits)}


@pytest.mark.case(64)
def test_a_batch_of_nothing_that_can_be_aligned_leaves_residual_and_weights_clean():
    task, model = SpeechRecognition(), DeepSpeech(161, 29, channels=1, hidden=4, layers=2)
    compressor, residual = ErrorFeedback(TopK(0.1)), None
    for pairs in ([(12, "ABCDEFGH"), (8, "")], [(12, "AAAAA"), (2, "AB")], [(40, "AB"), (30, "CC")]):
        model.zero_grad()
        loss, skipped = task.loss(model, batch(*pairs), None)
        loss.backward()
        gradient = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
        assert gradient.isfinite().all()
        state = compressor.init(gradient) if residual is None else residual
        _, residual = compressor.compress(gradient, state)
        kept = residual.residual
        assert kept.isfinite().all()
        assert gradient.any().item() is kept.any().item() is (skipped == 0).item()


# --- the model ---


def test_deepspeech_has_as_many_parameters_as_the_released_code():
    """43,476,256 is counted from the authors' code (PAPER.md, section 4), not printed in the paper."""
    with torch.device("meta"):
        model = DeepSpeech(161, 29)
    assert sum(parameter.numel() for parameter in model.parameters()) == 43_476_256
    parts = {name: sum(p.numel() for p in part.parameters()) for name, part in model.named_children()}
    assert (parts["conv1"], parts["conv2"]) == (32 * 41 * 11 + 32, 32 * 32 * 21 * 11 + 32)
    assert parts["lstms"] == 4 * 1024 * (1312 + 1024 + 2) + 4 * (4 * 1024 * (1024 + 1024 + 2))
    assert (parts["lookahead"], parts["linear"]) == (1024 * 21, 29 * 1024)


@pytest.fixture
def small():
    torch.manual_seed(0)
    return DeepSpeech(161, 29, channels=2, hidden=8, layers=3)


@pytest.mark.parametrize("training", [True, False])
def test_padding_changes_nothing(small, training):
    small.train(training)
    sounds, sizes, _, _ = batch((50, "A"), (31, "A"), (12, "A"))
    short, frames = small(sounds, sizes)
    long, same = small(nn.functional.pad(sounds, (0, 40)), sizes)
    assert frames.tolist() == same.tolist() == [25, 16, 6]
    for place, count in enumerate(frames):
        torch.testing.assert_close(long[:count, place], short[:count, place])


def test_an_utterance_alone_is_read_as_in_a_batch(small):
    small.eval()
    sounds, sizes, _, _ = batch((50, "A"), (31, "A"))
    together, frames = small(sounds, sizes)
    alone, _ = small(sounds[1:, :, :31], sizes[1:])
    torch.testing.assert_close(alone[:, 0], together[: frames[1], 1])


def test_frames_see_twenty_ahead_and_no_more(small):
    small.eval()
    sounds, sizes, _, _ = batch((160, "A"))
    before, _ = small(sounds, sizes)
    sounds[:, :, 120:] += 1.0
    after, _ = small(sounds, sizes)
    changed = (before != after).any(2)[:, 0].nonzero().flatten()
    # the convolutions, 11 wide both, reach 5 + 5 * 2 frames back from frame 120: from frame 105, so output 53
    assert changed[0].item() == 53 - 20


def test_every_weight_has_a_gradient(small):
    sounds, sizes, _, _ = batch((60, "A"), (50, "A"))
    small(sounds, sizes)[0].square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in small.parameters())
    # of two dimensions and more: batch norm takes a bias before it away again
    assert all(p.grad.any() for p in small.parameters() if p.dim() > 1)


# --- together ---


def test_synthetic_speech_is_learnt(folders):
    torch.manual_seed(0)
    data, task = SyntheticSpeech(train_count=256, valid_count=32), SpeechRecognition()
    data.prepare()
    model = DeepSpeech(data.bins, data.labels, channels=2, hidden=32, layers=1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    before, means = task.evaluate(model, data.valid_batches(16)), []
    for epoch in range(6):
        losses = []
        for some in data.train_batches(0, 1, 4, epoch, seed=1):
            optimizer.zero_grad()
            loss, _ = task.loss(model, some, None)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 100.0)
            optimizer.step()
            losses.append(loss.item())
        means.append(sum(losses) / len(losses))
    after = task.evaluate(model, data.valid_batches(16))
    assert all(later < earlier for earlier, later in pairwise(means))
    assert before["cer"] > 80
    assert after["cer"] < 20


class Hasty(SyntheticSpeech):
    """Every second utterance is cut off after 50 ms: three frames of the model's, for six letters."""

    def utterances(self, split):
        whole = enumerate(super().utterances(split))
        return [(sound[:800], "ABCDEF") if place % 2 else (sound, text) for place, (sound, text) in whole]


@pytest.mark.case(62)
@pytest.mark.case(64)
def test_the_benchmark_without_files_trains_and_says_what_it_skipped(composed, folders):
    small = ["model.channels=1", "model.hidden=8", "model.layers=2", "training.batch_per_rank=4"]
    steps = ["steps=4", "excluded_steps=0", "compute_only_steps=1", "valid_batches=1", "evaluate_every=2"]
    words = [*small, *(f"training.{word}" for word in steps)]
    config = check(composed("benchmark=lstm_speech", "compressor=topk", "ratio=0.05", *words))
    data, book = Hasty(train_count=16, valid_count=3), Memory()
    data.prepare()
    torch.manual_seed(0)
    model = build(config["model"])
    workers = VirtualWorkers(model, build(config["method"]), build(config["plan"]), world_size=2, seed=1)
    optimizer = build(config["optimizer"])(model.parameters())
    trainer = Trainer(workers, build(config["task"]), data, optimizer, config["training"], (0, 1), 2, seed=1)
    found = trainer.run(book, 0.05)
    assert (found["metric"], found["unit"], found["units_per_step_per_rank"]) == ("cer", "utterances", 4)
    assert found["skipped_utterances"] == 16  # half of 16, twice
    assert next(loss for _, loss, _ in book.steps) == 0.0  # from short to long: the first batch cannot be aligned
    assert all(weights.isfinite().all() for weights in model.parameters())
    assert [step for step, _ in book.points] == [2, 4]
    assert book.points[-1][1] == found["metric_value"] > 0
    assert found["wer"] > 0
