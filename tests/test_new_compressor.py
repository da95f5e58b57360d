"""What `make new-compressor` writes obeys the laws as it stands."""

import importlib.util
import sys

import pytest
import yaml
from conftest import ROOT

from sidco.testing import LAWS

sys.path.insert(0, str(ROOT / "scripts"))
import new_compressor


def folders(root):
    (root / "sidco" / "compressors").mkdir(parents=True)
    (root / "conf" / "compressor").mkdir(parents=True)
    return root


def test_the_skeleton_is_a_lawful_compressor(tmp_path):
    module_path, yaml_path = new_compressor.main("my_method", folders(tmp_path))
    assert yaml.safe_load(yaml_path.read_text()) == {
        "_target_": "sidco.compressors.my_method.MyMethod",
        "ratio": "${ratio}",
    }
    spec = importlib.util.spec_from_file_location("my_method", module_path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["my_method"] = module
    spec.loader.exec_module(module)
    for law in LAWS:
        law(module.MyMethod(0.01))


@pytest.mark.parametrize("name", ["Foo", "1foo", "a-b", "class", ""])
def test_a_name_that_is_none_is_refused(tmp_path, name):
    with pytest.raises(SystemExit, match="NAME must be a module name"):
        new_compressor.main(name, folders(tmp_path))


def test_nothing_is_overwritten(tmp_path):
    new_compressor.main("foo", folders(tmp_path))
    with pytest.raises(SystemExit, match="exists: choose another NAME"):
        new_compressor.main("foo", tmp_path)
