"""The lines of the values in a YAML document."""

import pytest
from tables import in_one_test

from hami_webhook.kube.yaml_reader import Document, Limits, YamlError, YamlProblem, read_documents

TEXT = """\
base: &base
  a: 1
  b: [x, y]
merged:
  <<: *base
  a: 2
list:
- k: v
- *base
text: |
  1
  2
"""


def document(text: str, limits: Limits | None = None) -> Document:
    (found,) = read_documents(text, limits or Limits(depth=10))
    return found


@in_one_test(
    ("path", "line"),
    [
        ((), 1),
        (("base", "a"), 2),
        (("base", "b", 1), 3),
        (("merged",), 4),
        (("merged", "a"), 6),
        (("merged", "b"), 3),
        (("list", 0), 8),
        (("list", 0, "k"), 8),
        (("list", 1), 9),
        (("list", 1, "a"), 2),
    ],
)
def test_every_value_has_a_line(path: tuple[str | int, ...], line: int) -> None:
    assert document(TEXT).line_at(path) == line


@pytest.mark.parametrize(
    ("path", "line"), [(("none",), 1), (("base", "c", "d"), 1), (("list", 7), 7), (("text", 0), 10)]
)
def test_a_path_to_nothing_has_the_line_of_what_is_around_it(path: tuple[str | int, ...], line: int) -> None:
    assert document(TEXT).line_at(path) == line


def test_block_texts_are_known_by_the_lines_of_their_keys() -> None:
    assert document(TEXT).block_lines == {10}


def test_lines_may_be_left_out_below_a_depth() -> None:
    shallow = document(TEXT, Limits(depth=10, line_depth=1))
    assert shallow.value == document(TEXT).value
    assert shallow.line_at(("list", 1, "a")) == 7


def test_a_redefined_anchor_is_that_of_what_it_is_in() -> None:
    with pytest.raises(YamlError) as refused:
        document("- &a x\n- &a [*a]")
    assert (refused.value.line, refused.value.problem) == (2, YamlProblem.RECURSIVE_ALIAS)
    assert document("- &a x\n- [*a]").value == ["x", ["x"]]


def test_a_second_document_is_refused_where_it_begins() -> None:
    with pytest.raises(YamlError) as refused:
        document("a: 1\n---\nb: 2", Limits(depth=10, single=True))
    assert (refused.value.line, refused.value.detail) == (2, "but found another document")
