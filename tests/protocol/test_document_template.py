"""A row becomes a document as its source says, or it is said what the row lacks."""

from typing import Any

import pytest

from dtfm_protocol.job.document_template import DocumentTemplate, Unfillable

ROW = {"question": "2 + 2?", "answer": 4, "share": 0.5, "tags": ["sums"], "gone": None, "sure": True}


@pytest.mark.parametrize(
    ("template", "document"),
    [
        ("{question}\n{answer}", "2 + 2?\n4"),
        ("{question}{question}", "2 + 2?2 + 2?"),
        ("{{{question}}} {share}", "{2 + 2?} 0.5"),
    ],
)
def test_a_template_is_filled_in_by_columns(template: str, document: str) -> None:
    made = DocumentTemplate(None, template)
    assert made.fill(ROW) == document
    assert set(made.columns) <= set(ROW)


def test_a_column_is_the_document_as_it_is() -> None:
    assert DocumentTemplate("a {b}", None).fill({"a {b}": " {x} \n"}) == " {x} \n"
    assert DocumentTemplate(None, None).columns == ("text",)


@pytest.mark.parametrize(
    ("column", "template", "said"),
    [
        (None, None, 'has no "text", only question, answer'),
        ("answer", None, 'has no text in "answer", which is a number'),
        ("gone", None, 'has no text in "gone", which is empty'),
        (None, "{tags}", 'has no text in "tags", which is a list'),
        (None, "{sure}", "true or false"),
        (None, "{question} {reply}", 'has no "reply"'),
    ],
)
def test_what_a_row_lacks_is_said(column: str | None, template: str | None, said: str) -> None:
    with pytest.raises(Unfillable) as caught:
        DocumentTemplate(column, template).fill(dict[str, Any](ROW))
    assert said in str(caught.value)
