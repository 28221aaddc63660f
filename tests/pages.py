"""A parser of the pages that we write, and what holds of each."""

import re
from html.parser import HTMLParser

VOID = {"meta", "link", "br"}


class Checker(HTMLParser):
    """Collects tags and texts, and fails on tags that do not nest."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, text: str) -> None:
        self.texts.append(text.strip())

    def values(self, attribute: str) -> list[str]:
        return [value for _, attributes in self.tags if (value := attributes.get(attribute)) is not None]


def assert_loads_nothing(page: str) -> None:
    """Whatever a page shows is in it, and no program is."""
    found = Checker(page)
    assert page.startswith("<!DOCTYPE html>")
    assert {tag for tag, _ in found.tags} & {"script", "img", "iframe", "object", "image"} == set()
    assert found.values("src") == []
    assert all(link.startswith(("#", "data:")) for link in found.values("href"))
    assert "@import" not in page
    assert set(re.findall(r"url\((.)", page)) <= {"#"}


def assert_references_resolve(page: str) -> None:
    """Ids are unique, and every link, label and colour that names one has it."""
    found = Checker(page)
    ids = found.values("id")
    assert len(ids) == len(set(ids))
    used = {link[1:] for link in found.values("href") if link.startswith("#")} | set(found.values("aria-labelledby"))
    for _, attributes in found.tags:
        used.update(name for value in attributes.values() for name in re.findall(r"url\(#(.*?)\)", value or ""))
    assert len(used) > 10
    assert used <= set(ids)
