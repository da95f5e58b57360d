"""Tasks against numbers worked out by hand, and every yaml of these groups instantiated."""

import math
from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from torch import nn

from experiments.data import cifar10
from experiments.tasks import Classification, LanguageModel

CONF = Path(__file__).parent.parent / "conf"


class Constant(nn.Module):
    """Gives each word the same logits whatever it reads; counts the calls in its carried state."""

    def __init__(self, logits):
        super().__init__()
        self.logits = nn.Parameter(torch.tensor(logits))
        self.starts = []

    def forward(self, tokens, carry):
        self.starts.append(carry)
        state = torch.zeros(1) if carry is None else carry[0] + 1
        state = state + 0 * self.logits.sum()  # part of the graph, as a hidden state is
        return self.logits.expand(*tokens.shape, -1), (state, state)


class Echo(nn.Module):
    """Its input is its output; says so only in evaluation mode."""

    def forward(self, x):
        return -x if self.training else x


def words(*targets):
    column = torch.tensor(targets)[:, None]  # (T, 1)
    return torch.zeros_like(column), column


def test_perplexity_of_a_uniform_model_is_the_vocabulary():
    assert LanguageModel().evaluate(Constant([0.0] * 8), [words(1, 2, 3)]) == {"perplexity": pytest.approx(8)}


def test_perplexity_by_hand_over_batches_of_unequal_length():
    model = Constant([math.log(0.5), math.log(0.25), math.log(0.25)])
    # probabilities 1/2 1/2 1/2 | 1/4: the mean is over words, not over batches; 2^((1 + 1 + 1 + 2) / 4)
    assert LanguageModel().evaluate(model, [words(0, 0, 0), words(2)]) == {"perplexity": pytest.approx(2 ** (5 / 4))}


def test_perplexity_of_a_diverged_model_is_infinite():
    assert LanguageModel().evaluate(Constant([0.0, -2000.0]), [words(1)]) == {"perplexity": math.inf}


def test_language_model_carries_detached_state():
    model, task = Constant([0.0, 0.0]), LanguageModel()
    _, carry = task.loss(model, words(0, 1), None)
    loss, carry = task.loss(model, words(0, 1), carry)
    assert model.starts[0] is None
    assert carry[0].item() == 1
    assert not any(state.requires_grad for state in carry)
    assert loss.item() == pytest.approx(math.log(2))
    assert loss.requires_grad


def test_top1_by_hand_over_batches_of_unequal_size():
    scores = torch.eye(3)
    batches = [(scores, torch.tensor([0, 1, 0])), (scores[:1], torch.tensor([0]))]
    assert Classification().evaluate(Echo(), batches) == {"top1": pytest.approx(75.0)}


@pytest.mark.parametrize("training", [True, False])
def test_evaluation_restores_the_mode(training):
    model = Echo().train(training)
    Classification().evaluate(model, [(torch.eye(2), torch.tensor([0, 1]))])
    assert model.training is training


def test_evaluation_of_nothing_is_an_error():
    with pytest.raises(ValueError, match="at least one batch"):
        Classification().evaluate(Echo(), [])


def test_counts():
    assert LanguageModel().count((torch.zeros(35, 20), torch.zeros(35, 20))) == 700
    assert Classification().count((torch.zeros(5, 3, 8, 8), torch.zeros(5))) == 5


@pytest.mark.parametrize("benchmark", sorted(file.stem for file in (CONF / "benchmark").glob("*.yaml")))
def test_every_benchmark_builds(benchmark):
    groups = ["+model=lstm", "+dataset=ptb", "+task=language_model", "+optimizer=sgd"]
    with initialize_config_dir(str(CONF), version_base=None):
        config = compose(overrides=[*groups, f"+benchmark={benchmark}"])
    with torch.device("meta"):
        model = instantiate(config.model)
    optimizer = instantiate(config.optimizer)(model.parameters())
    dataset, task = instantiate(config.dataset), instantiate(config.task)
    assert optimizer.param_groups[0]["lr"] == config.optimizer.lr
    assert {"window"} & set(config.dataset) == ({"window"} if task.unit == "words" else set())
    assert callable(dataset.prepare)
    assert config.training.batch_per_rank > 0
    assert "clip_norm" in config.training


@pytest.mark.parametrize("dataset", sorted(file.stem for file in (CONF / "dataset").glob("*.yaml")))
@pytest.mark.case(61)
def test_every_data_set_is_there_or_says_what_to_do(dataset, tmp_path, monkeypatch):
    monkeypatch.setenv("SIDCO_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("SIDCO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cifar10, "reachable", lambda url: False)
    with initialize_config_dir(str(CONF), version_base=None):
        built = instantiate(compose(overrides=[f"+dataset={dataset}"]).dataset)
    if dataset in {"stdlib", "digits", "synthetic_speech"}:  # what every machine has
        assert len(built.prepare()) == 64
    else:
        with pytest.raises(RuntimeError, match="benchmark=") as caught:
            built.prepare()
        assert str(tmp_path / "data" / dataset) in str(caught.value)
