"""Every client protocol over every kind of upstream: the right answer or a refusal, and the page that says which."""

from __future__ import annotations

import pytest

from tests.application.every_client import PAGE, page, table


@pytest.mark.slow
async def test_the_page_is_what_the_gateway_does() -> None:
    assert PAGE.read_text() == page(await table())
