"""The page of a report for readers who do not use a mouse, or do not see well.

The rules are those of axe-core, which is not part of this repository: `.ci/run` downloads it to ``.axe``.
"""

from pathlib import Path

import pytest

from tests.support.browser import DESKTOP, PHONE, example, needs_browser, seen

pytestmark = needs_browser

AXE = Path(__file__).parents[2] / ".axe/axe.min.js"
needs_axe = pytest.mark.skipif(not AXE.exists(), reason=f"no axe-core in {AXE.parent}; see .ci/run")
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
BROKEN = """
  {const image = document.querySelector("img"); image.removeAttribute("alt");}
  document.querySelector("input[type=search]").parentElement.replaceWith(document.createElement("input"));
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return example(tmp_path_factory.mktemp("page"))


def violations(page, width, dark, before=""):
    """Return the rules that the page breaks, with their elements, after everything that opens was opened."""
    script = f"""
      for (const part of document.querySelectorAll("details")) part.open = true;
      {before}
      const found = await axe.run(document, {{runOnly: {RULES}}});
      told = {{
        broken: found.violations.map((rule) => [rule.id, rule.nodes.map((node) => node.html)]),
        kept: found.passes.length,
      }};
    """
    told = seen(page, script, width, dark, library=AXE.read_text())
    assert told["kept"] > 30, "the rules were applied"
    return told["broken"]


@needs_axe
@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [DESKTOP, PHONE])
def test_the_page_breaks_no_rule_of_wcag_2_aa(page, width, dark):
    assert violations(page, width, dark) == []


@needs_axe
@pytest.mark.slow
def test_the_rules_find_what_is_wrong(page):
    """A picture without words, and a field without a name."""
    assert {"image-alt", "label"} <= {rule for rule, _ in violations(page, DESKTOP, False, BROKEN)}


def test_all_that_can_be_clicked_has_a_key_and_shows_it(page):
    """What takes clicks are elements that Tab reaches, each with a visible outline; nothing else has the hand."""
    script = """
      for (const part of document.querySelectorAll("details")) part.open = true;
      const all = [...document.body.querySelectorAll("*")].filter((e) => e.checkVisibility());
      const takes = all.filter((e) => e.matches("a[href], button, input, select, summary, [tabindex]"));
      const style = (e) => getComputedStyle(e);
      told = {
        takes: takes.length,
        skipped: takes.filter((e) => e.tabIndex < 0).map((e) => e.outerHTML),
        plain: takes.filter((e) => {
          e.focus();
          const {outlineStyle, outlineWidth} = style(e);
          return e !== document.activeElement || outlineStyle === "none" || parseFloat(outlineWidth) < 2;
        }).map((e) => e.outerHTML.slice(0, 80)),
        mice: all.filter((e) => style(e).cursor === "pointer" && !takes.some((t) => t.contains(e))).length,
        handlers: all.filter((e) => [...e.attributes].some((a) => a.name.startsWith("on"))).length,
      };
    """
    told = seen(page, script)
    assert told.pop("takes") > 60
    assert told == {"skipped": [], "plain": [], "mice": 0, "handlers": 0}


def test_headings_that_sort_are_buttons_and_say_so(page):
    script = """
      const heads = [...document.querySelectorAll("thead th")].filter((h) => h.closest("#board, #by-client"));
      const plain = heads.filter((h) => !h.querySelector(":scope > button"));
      const head = heads.find((h) => h.textContent === "Loss"), says = () => head.getAttribute("aria-sort");
      told = [heads.length > 20, plain.length, says()];
      for (let i = 0; i < 3; i++) { head.firstElementChild.click(); told.push(says()); }
    """
    assert seen(page, script) == [True, 0, None, "ascending", "descending", "ascending"]
