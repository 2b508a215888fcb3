"""A cache directory for the tests of the runtime, shared so that kernels compile once."""

from __future__ import annotations

import pytest

from fuseopt.runtime.cache import Store


@pytest.fixture(scope="session")
def store(tmp_path_factory) -> Store:
    return Store(tmp_path_factory.mktemp("cache") / "fuseopt")
