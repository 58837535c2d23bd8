"""The scanner finds the line and the text of every key that tomllib reads, whatever the TOML."""

from __future__ import annotations

import tomllib

import tomli_w
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paceline.job.lines import places

TEXT = (
    '''\
# comment = 1
data.train = "a # not a comment"   # yes

[train]   # the table
steps = 200
 "global_batch_size"  =  8
[optimizer]
betas = [
  0.9,  # first
  0.95,
]
note = """
[not.a.table]
x = 1
"""
'literal key' = 'it'''
    + """'
[cluster]
link = { intra = "5GB", inter = {a = [1, {b = 2}]} }
[[things]]
name = "a\\"]"
[[things]]
name = 1979-05-27 07:32:00
"""
)


def test_lines_of_keys():
    found = places(TEXT)
    lines = {key: place.line for key, place in found.items()}
    assert lines["data.train"] == 2
    assert lines["train"] == 4
    assert lines["train.steps"] == 5
    assert lines["train.global_batch_size"] == 6
    assert lines["optimizer.betas"] == 8
    assert lines["optimizer.note"] == 12
    assert lines["optimizer.literal key"] == 16
    assert lines["cluster.link.inter.a.b"] == 18
    assert "not.a.table" not in lines
    assert found["data.train"].text == '"a # not a comment"'
    assert found["things.name"].text == "1979-05-27 07:32:00"


VALUES = st.recursive(
    st.one_of(
        st.booleans(),
        st.integers(-(2**63), 2**63 - 1),
        st.floats(),
        st.text(st.characters(codec="utf-8")),
        st.dates(),
        st.datetimes(),
    ),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=3)
    ),
    max_leaves=8,
)
DOCUMENTS = st.dictionaries(st.text(st.characters(codec="utf-8"), min_size=1), VALUES, max_size=5)


def names(document: dict, prefix: str = "") -> set[str]:
    found = set()
    for name, value in document.items():
        found.add(prefix + name)
        if isinstance(value, dict):
            found |= names(value, f"{prefix}{name}.")
    return found


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(DOCUMENTS, st.booleans())
def test_every_key_of_any_document_is_found(document, windows):
    text = tomli_w.dumps(document)
    tomllib.loads(text)
    if windows:
        text = text.replace("\n", "\r\n")
    assert names(document) <= set(places(text))


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.text(alphabet="ab.=[]{}\"'#\\\n,1 \r"))
def test_no_text_crashes_the_scanner(text):
    places(text)
