"""What several tests of pages share."""

from __future__ import annotations

import pytest

from tests.report.browser import open_browser


@pytest.fixture(scope="module")
def browser():
    """One start for all tests of a file; a file with another size in mind has a fixture of its own."""
    with open_browser(1280, 1000) as driver:
        yield driver
