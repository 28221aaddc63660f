"""What the guides show at a prompt is what the code prints."""

import doctest
import re
from pathlib import Path
from typing import Any

import pytest

GUIDES = sorted((Path(__file__).parent.parent / "docs").glob("*.md"))


@pytest.mark.parametrize("guide", [path for path in GUIDES if ">>> " in path.read_text()], ids=lambda path: path.stem)
def test_prompts_in_a_guide_give_what_it_says(guide: Path) -> None:
    text = guide.read_text()
    names: dict[str, Any] = {}
    set_up = re.search(r"```python\n(import.*?)```", text, flags=re.DOTALL)
    if set_up:
        exec(set_up[1], names)  # noqa: S102 (our own guide)
    prompts = "\n".join(
        block for block in re.findall(r"```(?:python|pycon)?\n(.*?)```", text, flags=re.DOTALL) if ">>>" in block
    )
    test = doctest.DocTestParser().get_doctest(prompts, names, guide.name, str(guide), 0)
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    assert test.examples
    assert runner.run(test).failed == 0
