"""Shared by all tests."""

from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from experiments.data import cifar10

ROOT = Path(__file__).resolve().parent.parent

# vectors here are small, and threads that wait for each other on a busy machine take minutes for milliseconds of work;
# tests that are about threads set their own number
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def composed():
    """`composed("compressor=topk", …)`: the job configuration as the application sees it."""

    def compose_job(*overrides: str) -> DictConfig:
        GlobalHydra.instance().clear()
        with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
            whole = compose("config", overrides=list(overrides), return_hydra_config=True)
        HydraConfig.instance().set_config(whole)
        return OmegaConf.masked_copy(whole, [key for key in whole if key != "hydra"])

    return compose_job


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """Data and cache of this test alone; nothing outside answers."""
    monkeypatch.setenv("SIDCO_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("SIDCO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cifar10, "reachable", lambda url: False)
    return tmp_path
