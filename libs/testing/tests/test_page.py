"""The examples of the page "Test your plug-in" run as they stand there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from test_history import printed

PAGE = Path(__file__).parents[2] / "docs/pages/how-to/test-your-plug-in.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.night
@pytest.mark.parametrize("number", range(3))
def test_an_example_of_the_page_does_what_it_says(number: int) -> None:
    assert len(EXAMPLES) == 3
    printed("-c", EXAMPLES[number])
