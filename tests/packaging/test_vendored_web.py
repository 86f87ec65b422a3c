"""What the web pages load from other projects is what their packages have."""

from __future__ import annotations

from hack.vendor_web import FILES, SUMS, VENDORED, sums


def test_the_copies_are_those_of_the_packages_with_their_licences() -> None:
    assert sums() == SUMS.read_text()
    assert {file.name for file in VENDORED.iterdir()} == set(FILES.values())
    assert all((VENDORED / f"{name.split('.')[0]}.LICENSE").exists() for name in FILES.values())
