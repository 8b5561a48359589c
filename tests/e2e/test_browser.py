"""The page of a report, used as a reader does."""

import pytest

from tests.support.browser import DESKTOP, PHONE, example, needs_browser, seen

pytestmark = needs_browser

# Contrast as WCAG 2 defines it, of every text with what is behind it.
CONTRAST = """
  const parse = (color) => {
    const [r, g, b, a = 1] = color.match(/[\\d.]+/g).map(Number);
    return {rgb: [r, g, b], a};
  };
  const light = (rgb) => {
    const [r, g, b] = rgb.map((v) => v / 255).map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const {rgb, a} = parse(getComputedStyle(e).backgroundColor);
      if (a === 1) return rgb;
      if (a > 0) throw new Error(`half transparent: ${e.outerHTML}`);
    }
    throw new Error("no background");
  };
  const contrast = (color, element) => {
    const [a, b] = [light(parse(color).rgb), light(behind(element))];
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  };
  const texts = [...document.body.querySelectorAll("*")].filter((e) => !["SCRIPT", "OPTION"].includes(e.tagName)
    && e.checkVisibility() && [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim()));
  const found = texts.map((e) => [contrast(getComputedStyle(e).color, e), e.outerHTML.slice(0, 80)]);
  for (const e of document.querySelectorAll("input")) {
    found.push([contrast(getComputedStyle(e, "::placeholder").color, e), "placeholder"]);
  }
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return example(tmp_path_factory.mktemp("page"))


ROWS = """
  const boards = [...document.querySelectorAll("#board table")], form = document.forms[0];
  const board = boards[0], body = {get rows() { return boards.flatMap((table) => [...table.tBodies[0].rows]); }};
  const heads = boards.flatMap((table) => [...table.tHead.rows[0].cells]);
  const fields = [...form.elements].filter((f) => f.name);
  const best = () => form.querySelector(".best").value;
  const rows = () => [...body.rows].filter((r) => !r.hidden).map((r) => r.querySelector(".name a").textContent);
  const set = (name, value) => {
    form.elements[name].value = value;
    form.dispatchEvent(new Event("input"));
  };
"""


def test_clicks_sort_and_reverse_with_empty_fields_last(page):
    """EqOpp gaps: fedavg 0.1, ditto 0.3, and three cells without any."""
    script = """
      const button = heads.find((h) => h.textContent.includes("EqOpp")).querySelector("button");
      told = [];
      for (let i = 0; i < 2; i++) { button.click(); told.push(rows().slice(0, 2)); }
      told.push(decodeURIComponent(location.hash));
    """
    assert seen(page, ROWS + script) == [["fedavg", "ditto"], ["ditto", "fedavg"], "#descending=EqOpp+gap"]


def test_words_and_choices_filter_together_and_the_count_tells(page):
    script = """
      const count = () => form.querySelector(".shown").value;
      told = [[rows().length, count()]];
      set("algorithm", "fedavg"); told.push([rows(), count()]);
      set("text", "ALPHA=5"); told.push([rows(), count()]);
      set("algorithm", "ditto"); told.push([rows(), count()]);
      set("text", ""); set("algorithm", ""); set("status", "some failed"); told.push([rows(), count()]);
    """
    assert seen(page, ROWS + script) == [
        [5, "5 of 5 rows"],
        [["fedavg", "fedavg"], "2 of 5 rows"],
        [["fedavg"], "1 of 5 rows"],
        [[], "0 of 5 rows"],
        [["fedavg"], "1 of 5 rows"],
    ]


def test_an_address_brings_back_what_was_chosen_and_its_order(page):
    script = ROWS + "told = [rows(), form.elements.status.value, form.elements.algorithm.value];"
    hash = "#status=complete&descending=EqOpp+gap&algorithm=nobody"
    assert seen(page, script, hash=hash) == [["ditto", "fedavg"], "complete", ""]


def test_what_can_be_chosen_is_what_differs(page):
    """All have the same data, problem, model and pruning; the cell that was skipped asked for no privacy."""
    script = """
      const lists = fields.filter((f) => f.options);
      told = Object.fromEntries(lists.map((f) => [f.name, [...f.options].map((o) => o.text)]));
    """
    assert seen(page, ROWS + script) == {
        "algorithm": ["all", "ditto", "fedavg", "fedbio", "scaffold"],
        "partition": ["all", "dirichlet(alpha=0.3)", "dirichlet(alpha=5.0)"],
        "protection": ["all", "client/local", "none"],
        "epsilon": ["all", "none", "8"],
        "status": ["all", "complete", "missing", "skipped", "some failed"],
    }


def test_numbers_bound_what_is_shown_and_name_the_best(page):
    """Ditto .92 and fedavg .82 without privacy, fedavg .7 at epsilon 8; unfinished cells have no figures."""
    script = """
      told = [fields.filter((f) => f.type === "number").map((f) => f.name), best()];
      set("accuracy", "0.7"); told.push([rows(), best()]);
      set("accuracy", "0.75"); told.push([rows(), best()]);
      set("accuracy", "0.9"); told.push([rows(), best(), location.hash]);
      set("accuracy", "1"); told.push([rows(), best()]);
    """
    names, first, loose, middle, tight, none = seen(page, ROWS + script)
    assert names == ["accuracy"]  # nothing else differs
    assert first == ""
    assert sorted(loose[0]) == ["ditto", "fedavg", "fedavg"] and loose[1].startswith("best: ditto")
    assert sorted(middle[0]) == ["ditto", "fedavg"]
    assert (tight[0], tight[2]) == (["ditto"], "#accuracy=0.9")
    assert none == [[], "nothing is within these bounds"]


def test_the_filter_takes_bounds_beside_words(page):
    """Without privacy nothing is bounded, so that only the private cell has an epsilon of at most 8."""
    script = """
      told = [];
      for (const text of ["epsilon <= 8", "ε<8", "accuracy>=.75 FEDAVG", "alpha=5 accuracy > 0", "size < 3",
                          "bytes_up > 1e3"]) {
        set("text", text); told.push([rows(), best()]);
      }
    """
    at_most, below, plain, settings, unknown, bytes = seen(page, ROWS + script)
    assert at_most[0] == ["fedavg"] and at_most[1].startswith("best: fedavg")
    assert below[0] == []
    assert plain[0] == ["fedavg"] and settings[0] == ["fedavg"]
    assert (len(unknown[0]), unknown[1]) == (5, "no number is called size")
    assert sorted(bytes[0]) == ["ditto", "fedavg"], "20,000 each; the private one sent 900"


@pytest.mark.parametrize(("width", "scroll"), [(PHONE, 0), (PHONE, 400), (600, 200)])
def test_method_measure_and_epsilon_stay_in_sight(page, width, scroll):
    """The ranking measure and epsilon lie whole inside the table's window, beside each other, scrolled or not."""
    script = f"""
      const names = (table) => [...table.tHead.rows[0].cells].map((h) => h.textContent);
      const private = boards.find((table) => names(table).includes("ε total"));
      const window = private.parentElement;
      window.scrollIntoView();
      window.scrollLeft = {scroll};
      const outer = window.getBoundingClientRect();
      told = {{scrolled: window.scrollLeft, places: ["Algorithm", "ε total", "Accuracy"].map((name) => {{
        const at = (name) => names(private).indexOf(name);
        const row = [...private.tBodies[0].rows].find((r) => r.cells[at("ε total")].textContent === "8");
        const cell = row.cells[at(name)], box = cell.getBoundingClientRect();
        const over = document.elementFromPoint(box.left + box.width / 2, box.top + box.height / 2);
        return [Math.round(box.left - outer.left), Math.round(outer.right - box.right), cell.contains(over)];
      }})}};
    """
    told = seen(page, ROWS + script, width)
    assert scroll == 0 or told["scrolled"] > 100
    lefts = [left for left, _, _ in told["places"]]
    assert lefts == sorted(lefts) and min(lefts) >= 0
    assert all(right >= 0 and on_top for _, right, on_top in told["places"])


def test_a_task_without_rows_is_not_shown_and_a_word_may_be_of_its_heading(page):
    script = """
      const tasks = () => [...document.querySelectorAll(".task")].filter((t) => t.checkVisibility()).length;
      told = [tasks()];
      set("text", "dirichlet(alpha=5.0) fedavg"); told.push(tasks(), rows());
      set("text", ""); told.push(tasks());
    """
    assert seen(page, ROWS + script) == [2, 1, ["fedavg"], 2]


def test_a_heading_sorts_every_task_by_its_column(page):
    script = """
      const sorted = () => heads.filter((h) => h.hasAttribute("aria-sort")).map((h) => h.textContent);
      heads.find((h) => h.textContent === "Accuracy").querySelector("button").click();
      told = [sorted(), location.hash];
    """
    assert seen(page, ROWS + script) == [["Accuracy", "Accuracy"], "#ascending=Accuracy"]


def test_a_printed_page_cuts_no_table(page, tmp_path):
    """On A4 in landscape, 1,040 pixels between margins, nothing scrolls, and every table fits."""
    rules = page.read_text().split("@media print {", 1)[1].split("</style>", 1)[0].rstrip()[:-1]
    printed = tmp_path / "printed.html"
    printed.write_text(page.read_text().replace("</style>", f"{rules}</style>"))
    script = """
      const tables = [...document.querySelectorAll("main table")].filter((t) => t.checkVisibility());
      told = [tables.length > 2, tables.filter((t) => t.getBoundingClientRect().right > innerWidth).length,
              tables.filter((t) => getComputedStyle(t.parentElement).overflowX !== "visible").length];
    """
    assert seen(printed, script, 1040) == [True, 0, 0]


def test_a_shade_tells_of_columns_beyond_the_edge(page):
    """A phone shows no scroll bar. The cover travels with the content, the shade below it stays at the edge."""
    script = """
      const of = getComputedStyle(document.querySelector(".board"));
      told = [of.backgroundAttachment, of.backgroundImage.split("linear-gradient").length - 1];
    """
    assert seen(page, ROWS + script, PHONE) == ["local, scroll, scroll", 2]


def test_refused_and_failed_cells_are_crossed_out(page):
    script = """
      const drawn = (cell) => getComputedStyle(cell).backgroundImage.includes("gradient");
      const crossed = [...body.rows].filter((r) => [...r.cells].some(drawn));
      told = crossed.map((r) => r.querySelector(".name").textContent);
    """
    assert seen(page, ROWS + script) == ["scaffoldskipped"], "what is only missing is not"


def test_results_of_clients_can_be_bounded_by_their_samples(page):
    """Oslo has 4 test samples in one seed and 8 in the other: the fewest count."""
    script = """
      const table = document.getElementById("by-client"), own = document.forms[1];
      const rows = [...table.tBodies[0].rows];
      const shown = () => rows.filter((r) => !r.hidden).map((r) => r.cells[0].textContent);
      told = [shown()];
      own.elements["client.n"].value = "5"; own.dispatchEvent(new Event("input")); told.push(shown());
      own.elements["client.n"].value = ""; own.elements["client.text"].value = "auroc > .85";
      own.dispatchEvent(new Event("input")); told.push(shown(), location.hash);
    """
    whole, large, good, hash = seen(page, script)
    assert whole == ["Rome", "Oslo"], "in the order of the data"
    assert large == ["Rome"] and good == ["Rome"]
    assert hash == "#client.text=auroc+%3E+.85"


def test_a_link_from_a_row_opens_its_provenance(page):
    script = """
      const link = body.rows[0].querySelector("a"), target = document.querySelector(link.hash);
      told = [target.open]; location.hash = link.hash; dispatchEvent(new Event("hashchange"));
      told.push(target.open);
    """
    assert seen(page, ROWS + script) == [False, True]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [DESKTOP, PHONE])
def test_text_is_legible_and_fits_the_window(page, width, dark):
    script = f"""
      for (const part of document.querySelectorAll("details")) part.open = true;
      {CONTRAST}
      told = {{
        dark: matchMedia("(prefers-color-scheme: dark)").matches,
        width: innerWidth, needs: document.documentElement.scrollWidth, texts: found.length,
        faint: found.filter(([ratio]) => ratio < 4.5), scripts: document.scripts.length,
        broken: [...document.images].filter((i) => !i.naturalWidth).length, images: document.images.length,
      }};
    """
    told = seen(page, script, width, dark)
    assert told["faint"] == [] and told["texts"] > 100
    assert (told["width"], told["dark"]) == (width, dark) and told["needs"] <= width
    assert told["scripts"] == 3  # the page's, an empty one and this one
    assert told["images"] >= 3 and told["broken"] == 0
