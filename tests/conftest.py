"""What tests of several folders share: a cache for kernels, and how hypothesis runs.

Property tests are the same on every run and few. HYPOTHESIS_EXAMPLES=400 draws that many, anew.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

from fuseopt.runtime.cache import Store

EXAMPLES = os.environ.get("HYPOTHESIS_EXAMPLES", "")

settings.register_profile(
    "fuseopt",
    max_examples=int(EXAMPLES or 40),
    derandomize=not EXAMPLES,
    deadline=None,
    database=None,
    print_blob=bool(EXAMPLES),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
settings.load_profile("fuseopt")


@pytest.fixture(scope="session")
def store(tmp_path_factory) -> Store:
    return Store(tmp_path_factory.mktemp("cache") / "fuseopt")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-goldens", action="store_true", help="write the printed kernels of tests/golden"
    )
