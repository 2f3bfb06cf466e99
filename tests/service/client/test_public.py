"""The public names, and what importing them costs."""

import hybridkv
from tests.service.client.processes import run_script


def test_every_public_name_is_there() -> None:
    for name in hybridkv.__all__:
        assert getattr(hybridkv, name) is not None
    assert set(hybridkv.__all__) <= set(dir(hybridkv))
    assert hybridkv.connect.__module__.startswith("hybridkv.service.client")


def test_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(hybridkv, "L1")


def test_import_is_light() -> None:
    heavy = "['numpy', 'grpc', 'torch', 'pydantic', 'lmdb']"
    ran = run_script(f"import hybridkv, sys; print([m for m in {heavy} if m in sys.modules])")
    assert ran.stdout == "[]\n", ran.stderr


def test_client_imports_no_torch() -> None:
    ran = run_script("import sys, hybridkv; hybridkv.connect; hybridkv.open; print('torch' in sys.modules)")
    assert ran.stdout == "False\n", ran.stderr
