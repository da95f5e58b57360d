"""What is prepared is whole or not there; what is missing is said within seconds, with where and what else."""

import socket

import numpy as np
import pytest
from data_sets import REAL, make_ptb

from experiments.data import cache, cifar10
from experiments.data.cache import DataMissing
from experiments.data.cifar10 import Cifar10
from experiments.data.text import PTBText

pytestmark = pytest.mark.usefixtures("folders")


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
