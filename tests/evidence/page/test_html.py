"""Text is escaped unless it was made here."""

from __future__ import annotations

from paceline.evidence.page.html import Html, details, escape, join, table, tag, value_html


def test_text_is_escaped_and_html_is_not_escaped_twice() -> None:
    assert tag("b", "<i>", Html("<u></u>"), title='"x"') == '<b title="&quot;x&quot;">&lt;i&gt;<u></u></b>'
    assert join(["a<", None, Html("<b>")], " · ") == "a&lt; · <b>"
    assert escape(escape("&")) == "&amp;"


def test_attributes_that_are_none_or_empty_are_left_out() -> None:
    assert tag("td", 3, cls="", data_x=None) == "<td>3</td>"
    assert tag("label", "x", for_="y") == '<label for="y">x</label>'
    assert details("s", "c", open_=True) == '<details open=""><summary>s</summary>c</details>'


def test_a_table_marks_numbers_and_one_row() -> None:
    html = table(("a", "n"), [("<", 1), ("y", 2)], numbers=(1,), mark=1)
    assert '<tr class="chosen"><td>y</td><td class="number">2</td></tr>' in html
    assert "<td>&lt;</td>" in html
    assert html.count("chosen") == 1


def test_any_json_value_can_be_shown() -> None:
    html = value_html({"a<": [1, 2.5, None, True], "b": {}, "c": [{"d": "<e>"}], "n": 10_900_000})
    assert "<e>" not in html
    assert "a&lt;" in html
    assert "10\u202f900\u202f000" in html
    assert "yes" in html
