"""The token component: what Python sends, what it accepts back, and what a real browser does with it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import trees
from hypothesis import given
from hypothesis import strategies as st
from playwright.sync_api import Browser, Locator, Page, expect
from streamlit.testing.v1 import AppTest

from backend.transcript import TranscriptView, display_text, first_difference, partial_bytes
from backend.transcript_view import rollout_view, token_ids_of
from tests.browser import serve

HOSTILE = "<img src=x onerror=alert(1)>"

APP = f"""
import streamlit as st
from backend.transcript import (
    COLOURS, ContinuationCell, ContinuationRow, TranscriptView, continuation_table, token_transcript,
)

st.set_page_config(layout="wide")
colour = st.selectbox("Colour", COLOURS, key="colour")
if st.button("Select 5"):
    st.session_state.selected = 5
words = ["Ask", ":", " What", " is", " 2", "+2", "?", {HOSTILE!r}, "\\n", " 4", "é·", "", "<|end|>"]
view = TranscriptView(
    text=words,
    prompt_length=2,
    credit={{
        "exact": {{3: 0.5, 4: 0.0, 6: -0.25}},
        "replica": {{3: 0.25, 4: 0.0, 6: -0.25}},
        "refeed": {{3: -0.5, 4: 0.0, 6: -0.25}},
    }},
    margin={{3: 0.125, 9: 0.75}},
    alternative={{3: {HOSTILE!r}}},
    candidates=[3, 9],
    special=[12],
    raw={{10: "c3 a9 e2"}},
)


def picked(position):
    st.session_state.selected = position


position = token_transcript(
    view, key="transcript", colour=colour, selected=st.session_state.get("selected"), on_pick=picked
)
st.text(f"returned {{position}}, selected {{st.session_state.get('selected')}}")
wrong = ContinuationCell([" 2", {HOSTILE!r}, "!"], "wrong", None, "stop", difference=1)
right = ContinuationCell([" 2", " +", " 2"], "right", "4", "stop")
continuation_table(
    [
        ContinuationRow("actual", " 2", 0, {{"exact": right, "replica": right, "refeed": wrong}}),
        ContinuationRow("alternative", {HOSTILE!r}, 0, {{"exact": right}}),
    ],
    passes=["exact", "replica", "refeed"],
    key="continuations",
)
"""


TWINS = """
import streamlit as st
from backend.transcript import TranscriptView, token_transcript

for name, length in (("long", 2000), ("short", 900)):
    view = TranscriptView(text=[f" {name}{i}" + "\\n" * (i % 40 == 39) for i in range(length)], prompt_length=0)
    token_transcript(view, key=name, height=200, group="pair", selected=1500 if name == "long" else None)
"""


COLUMNS = """
import streamlit as st
from backend.transcript import TranscriptView, token_transcript

for column, (name, prompt, words, parts) in zip(st.columns(2), (
    ("left", ["Ask", ":"], [" a", " b", " c", " d"], 4), ("right", ["Q"], [" a", " b", " x"], 3))):
    with column:
        view = TranscriptView(text=[*prompt, *words], prompt_length=len(prompt), parts=parts)
        token_transcript(view, key=name, group="pair", show="text")
"""


# ---- Python --------------------------------------------------------------------------------------------------------


def test_a_character_split_over_tokens_shows_on_its_last() -> None:
    assert display_text([b"a\xe2", b"\x82", b"\xac b", "é".encode()]) == ["a·", "·", "€ b", "é"]
    assert partial_bytes([b"a\xe2", b"\x82", b"\xac b", b"c"], first=10) == {10: "61 e2", 11: "82", 12: "ac 20 62"}


def test_bytes_that_become_no_character_show_as_the_replacement_character() -> None:
    assert display_text([b"\xe2\x82", b"abc"]) == ["\ufffd", "abc"]  # on the token that holds them
    assert display_text([b"\xff", b"x\xf0\x9f"]) == ["\ufffd", "x\ufffd"]
    assert display_text([b"\xe2", b"", b"\x82\xac"]) == ["·", "·", "€"]
    assert display_text(["\ufffd".encode(), b"x"]) == ["\ufffd", "x"]  # a model may say it itself
    assert display_text([]) == []


@given(st.text(), st.data())
def test_splitting_text_anywhere_loses_no_character(text: str, data: st.DataObject) -> None:
    raw = text.encode("utf-8")
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=8)))
    tokens = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    shown = display_text(tokens)
    assert len(shown) == len(tokens)
    assert "".join(shown).replace("·", "") == text.replace("·", "")


@given(st.lists(st.binary(max_size=6), max_size=12))
def test_any_bytes_can_be_shown(tokens: list[bytes]) -> None:
    shown = display_text(tokens)
    assert len(shown) == len(tokens)
    json.dumps(shown).encode("utf-8")


def test_first_difference() -> None:
    assert first_difference([1, 2, 3], [1, 2, 3]) is None
    assert first_difference([1, 2, 3], [1, 9, 3]) == 1
    assert first_difference([1, 2, 3], [1, 2]) == 2
    assert first_difference([], []) is None
    assert first_difference([], [4]) == 0


def test_delta_and_flip_need_both_passes() -> None:
    view = TranscriptView(
        text=["a"] * 6,
        prompt_length=1,
        credit={"exact": {1: 0.5, 2: 0.0, 3: 0.25, 4: -1.0}, "refeed": {1: -0.5, 2: 0.0, 3: 0.0, 5: 1.0}},
    )
    assert view.delta == {1: -1.0, 2: 0.0, 3: -0.25}
    assert view.flip == {1: True, 2: False, 3: True}


def test_the_revision_is_the_content() -> None:
    def view(credit: float) -> TranscriptView:
        return TranscriptView(text=["a", "b"], prompt_length=1, credit={"exact": {1: credit}})

    assert view(0.5).revision == view(0.5).revision
    assert view(0.5).revision != view(0.25).revision
    with pytest.raises(ValueError, match="JSON"):
        assert view(float("nan")).revision


def test_only_a_generated_position_comes_back() -> None:
    view = TranscriptView(text=["a", "b", "c"], prompt_length=1)
    assert [view.picked(value) for value in (1, 2)] == [1, 2]
    assert [view.picked(value) for value in (0, 3, -1, None, "1", 1.0, True, [1], {"pick": 1})] == [None] * 9


def test_a_prompt_longer_than_the_rollout_is_refused() -> None:
    with pytest.raises(ValueError, match="prompt_length is 3, but there are 2 tokens"):
        TranscriptView(text=["a", "b"], prompt_length=3)


def test_the_page_sends_columns_and_reads_the_pick() -> None:
    at = AppTest.from_string(APP, default_timeout=30).run()
    assert not at.exception
    assert [text.value for text in at.text] == ["returned None, selected None"]
    sent = json.loads(at.get("bidi_component")[0].proto.json)
    drawn = json.loads(sent["view"])
    assert drawn["text"][7] == HOSTILE
    assert drawn["flip"] == {"3": True, "4": False, "6": False}
    assert sent["colour"] == "credit"
    at.session_state["transcript"] = {"pick": 4}
    at.run()
    assert at.text[0].value.startswith("returned 4")
    at.session_state["transcript"] = {"pick": 1}  # in the prompt
    at.run()
    assert at.text[0].value.startswith("returned None")


# ---- the browser ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    script = tmp_path_factory.mktemp("transcript") / "app.py"
    script.write_text(APP, encoding="utf-8")
    with serve(script) as url:
        yield url


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    wrong: list[str] = []
    page.on("dialog", lambda dialog: (wrong.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.goto(address)
    expect(page.get_by_role("option")).to_have_count(11)
    yield page
    page.close()
    assert wrong == []


def tokens(page: Page) -> Locator:
    return page.get_by_role("listbox", name="Generated tokens")


def token(page: Page, position: int) -> Locator:
    return page.locator(f"#t{position}")


def active(page: Page) -> str | None:
    return tokens(page).get_attribute("aria-activedescendant")


@pytest.mark.browser
def test_hostile_text_stays_text(page: Page) -> None:
    expect(token(page, 7)).to_have_text(HOSTILE)
    expect(page.get_by_role("columnheader", name="refeed")).to_be_visible()
    expect(page.get_by_text("first difference (1)")).to_be_visible()
    token(page, 3).hover()
    expect(page.get_by_role("tooltip").filter(has_text="alternative")).to_contain_text(json.dumps(HOSTILE))
    assert page.locator("img[src=x]").count() == 0


@pytest.mark.browser
def test_a_click_returns_the_position_and_stays_selected(page: Page) -> None:
    token(page, 9).click()
    expect(token(page, 9)).to_have_attribute("aria-selected", "true")
    expect(page.get_by_text("returned 9, selected 9")).to_be_visible()
    page.get_by_role("button", name="Select 5").click()
    expect(token(page, 5)).to_have_attribute("aria-selected", "true")
    expect(token(page, 9)).to_have_attribute("aria-selected", "false")
    expect(page.get_by_text("returned None, selected 5")).to_be_visible()


@pytest.mark.browser
def test_quick_clicks_end_on_the_last(page: Page) -> None:
    for position in (3, 4, 6, 3):
        token(page, position).click()
    expect(page.get_by_text("selected 3")).to_be_visible()
    expect(token(page, 3)).to_have_attribute("aria-selected", "true")
    expect(page.get_by_role("option", selected=True)).to_have_count(1)


@pytest.mark.browser
def test_the_keyboard_reaches_and_picks_every_token(page: Page) -> None:
    tokens(page).focus()
    assert active(page) == "t2"
    visited = []
    keys = ["ArrowRight", "End", "ArrowRight", "ArrowUp", "Home", "ArrowLeft", "ArrowDown", "PageUp", "PageDown"]
    for key in keys:
        page.keyboard.press(key)
        visited.append(active(page))
    assert visited[:3] == ["t3", "t12", "t12"]
    assert visited[3] in {f"t{position}" for position in range(2, 9)}  # the line above
    assert visited[4:6] == ["t2", "t2"]
    assert visited[6] == "t9"  # the first token of the second line
    assert visited[7] == "t2"
    page.keyboard.press("Home")
    visited = []
    for key in "nnnnnppp":
        page.keyboard.press(key)
        visited.append(active(page))
    assert visited == ["t3", "t4", "t6", "t9", "t9", "t6", "t4", "t3"]  # measured or low margin
    page.keyboard.press("Enter")
    expect(page.get_by_text("returned 3, selected 3")).to_be_visible()
    page.keyboard.press("End")
    page.keyboard.press("Space")
    expect(page.get_by_text("returned 12, selected 12")).to_be_visible()


@pytest.mark.browser
def test_find_moves_to_the_text_and_leaves_the_pages_shortcuts_alone(page: Page) -> None:
    tokens(page).focus()
    page.keyboard.press("/")
    page.keyboard.type("2+")  # over a token boundary
    page.keyboard.press("Enter")
    assert active(page) == "t4"
    finder = page.get_by_role("searchbox", name="Find text in the transcript")
    finder.fill("")
    page.keyboard.type("crc")
    expect(finder).to_have_value("crc")
    page.keyboard.press("Enter")
    expect(finder).to_have_class("find none")
    expect(page.get_by_role("dialog")).to_have_count(0)


@pytest.mark.browser
def test_what_is_not_measured_does_not_look_like_zero(page: Page) -> None:
    def look(position: int) -> tuple[str, str, str]:
        names = ["backgroundColor", "boxShadow", "borderBottomStyle"]
        script = "(node, names) => names.map((name) => getComputedStyle(node)[name])"
        return tuple(token(page, position).evaluate(script, names))

    positive, zero, negative, unmeasured = look(3), look(4), look(6), look(5)
    assert len({positive, zero, negative, unmeasured}) == 4
    assert zero[1] != "none"
    assert unmeasured[1] == "none"
    assert negative[2] == "dotted"  # a sign without a colour
    assert positive[2] == "solid"
    expect(token(page, 3)).to_have_class("t measured pos disagrees candidate")
    expect(token(page, 5)).to_have_class("t")
    assert token(page, 3).get_attribute("aria-label") == '" is", position 3, credit +0.50, refeed disagrees'
    assert token(page, 5).get_attribute("aria-label") == '"+2", position 5, not measured'


@pytest.mark.browser
def test_a_colour_repaints_and_the_tooltip_shows_every_pass(page: Page) -> None:
    token(page, 3).hover()
    tip = page.get_by_role("tooltip").filter(has_text="position")
    for said in (
        "3, generated 1",
        "exact+0.50",
        "replica+0.25floor 0.25",
        "refeed−0.50Δ −1.00, disagrees",
        "margin0.125",
    ):
        expect(tip).to_contain_text(said)
    token(page, 10).hover()
    expect(tip).to_contain_text("bytes c3 a9 e2")
    page.get_by_role("combobox", name="Colour").click()
    page.get_by_role("option", name="refeed − exact", exact=True).click()
    expect(token(page, 3)).to_have_class("t measured neg disagrees candidate")
    expect(token(page, 4)).to_have_class("t measured zero")


@pytest.mark.browser
def test_spans_are_built_once(page: Page) -> None:
    token(page, 5).evaluate("node => { node.sameNode = true; }")
    page.get_by_role("combobox", name="Colour").click()
    page.get_by_role("option", name="flip", exact=True).click()
    expect(token(page, 3)).to_have_class("t measured alarm disagrees candidate")
    token(page, 5).click()
    expect(page.get_by_text("returned 5, selected 5")).to_be_visible()
    assert token(page, 5).evaluate("node => node.sameNode === true")


@pytest.mark.browser
def test_a_selection_is_scrolled_to_and_a_group_scrolls_together(browser: Browser, tmp_path: Path) -> None:
    script = tmp_path / "twins.py"
    script.write_text(TWINS, encoding="utf-8")
    with serve(script) as url:
        page = browser.new_page(viewport={"width": 1000, "height": 800})
        page.goto(url)
        long, short = tokens(page).first, tokens(page).last
        selected = long.get_by_role("option", selected=True)
        expect(selected).to_have_text(" long1500")
        expect(selected).to_be_in_viewport()
        long.hover()
        long.evaluate("box => { box.scrollTop = 0; }")
        expect(short.get_by_text(" short5", exact=True)).to_be_in_viewport()
        long.evaluate("box => { box.querySelector('#t400').scrollIntoView({ block: 'start' }); }")
        expect(short.get_by_text(" short400", exact=True)).to_be_in_viewport()
        assert page.evaluate("document.scrollingElement.scrollTop") == 0
        page.close()


@pytest.mark.browser
def test_a_group_has_one_selection_and_marks_where_its_texts_part(browser: Browser, tmp_path: Path) -> None:
    script = tmp_path / "columns.py"
    script.write_text(COLUMNS, encoding="utf-8")
    with serve(script) as url:
        page = browser.new_page(viewport={"width": 1000, "height": 800})
        page.goto(url)
        left, right = tokens(page).first, tokens(page).last
        for column, text in ((left, " c"), (right, " x")):
            expect(column.locator(".parts")).to_have_text(text)
        left.get_by_text(" b", exact=True).click()
        for column in (left, right):
            expect(column.get_by_role("option", selected=True)).to_have_text(" b")
        right.get_by_text(" x", exact=True).click()
        expect(right.get_by_role("option", selected=True)).to_have_text(" x")
        expect(left.get_by_role("option", selected=True)).to_have_count(0)
        left.get_by_text(" d", exact=True).click()  # behind the other's end
        expect(left.get_by_role("option", selected=True)).to_have_text(" d")
        expect(right.get_by_role("option", selected=True)).to_have_count(0)
        page.close()


@pytest.mark.browser
def test_continuations_name_their_outcome_and_what_is_missing(page: Page) -> None:
    row = page.get_by_role("row").filter(has_text="actual").filter(has_text="sample 0").first
    cells = row.get_by_role("cell")
    expect(cells.nth(0)).to_contain_text("rightanswer 43 tokens, stop 2 + 2")
    expect(cells.nth(1)).to_contain_text("= identical to exact")
    expect(cells.nth(2)).to_contain_text("wrongno answer")
    expect(cells.nth(2)).to_contain_text(HOSTILE)
    missing = page.get_by_role("row").filter(has_text="alternative").filter(has_text="sample 0").last
    expect(missing.get_by_role("cell").nth(2)).to_have_text("not computed yet")


def test_credit_is_of_the_pivots_own_alternative_where_it_was_measured() -> None:
    own = trees.measurement(run="replay-20261201T100000-aaaa", arms=(2, 1))
    other = trees.measurement(run="replay-20261201T110000-bbbb", arms=(0, 2), alternative=7)
    both, alone = (trees.rollout(pivots=[trees.pivot(measurements=found)]) for found in ([own, other], [other]))
    assert rollout_view(both, {}).credit == {"exact": {3: 0.5}}
    assert rollout_view(alone, {}).credit == {"exact": {3: -1.0}}
    assert both.pivots[0].tokens == {4, 5, 7}
    assert token_ids_of(both) >= {4, 5, 7}
