"""The documents keep their word: every command in them is one of ours, and those of `docs/` are run.

A page is run from top to bottom in a folder of its own that holds `docs/`:

- every line ``python -m harness ...`` or ``python -m studies ...`` of a fenced block without a language, or of
  console, sh or bash;
- every block of Python that begins with ``import harness``;
- a block of Python or YAML whose first line is the comment ``# NAME.py`` or ``# NAME.yaml`` becomes that file.

``<!-- slow -->`` on the line before a block keeps it from being run; its commands must still be valid.
"""

import argparse
import re
import runpy
import shlex
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

import harness
from harness.cli.parser import main, parser
from harness.config.run import read_spec
from harness.config.suite import read_suite
from harness.config.yaml import read
from harness.testing import conformance
from studies import __main__ as studies

ROOT = Path(__file__).parents[2]
PARSERS = {"harness": parser, "studies": studies.parser}
MAINS = {"harness": main, "studies": studies.main}
READ = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BASE = {
    "data": "breast-cancer",
    "partition": {"kind": "iid", "clients": 4},
    "model": "logistic",
    "algorithm": "fedavg",
    "rounds": 1,
}
CHECKED = {"fedavg", "scaffold", "fed_mine"}  # in full by `tests/conformance` and `test_new_command.py`
BLOCK = re.compile(r"^(<!-- slow -->\n+)?```([\w{}-]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# ([\w-]+\.(?:py|yaml))\n")


class Block(NamedTuple):
    """A fenced block."""

    language: str
    body: str
    slow: bool

    @property
    def commands(self):
        """Return the program and the arguments of every command of ours."""
        if self.language not in ("", "console", "sh", "bash"):
            return []
        lines = self.body.replace("\\\n", " ").splitlines()
        ours = [re.match(r"(?:\$ )?(?:\.venv/bin/)?python -m (harness|studies) (.*)", line) for line in lines]
        return [(found[1], shlex.split(found[2], comments=True)) for found in ours if found]


def blocks(text):
    return [Block(language, body, bool(slow)) for slow, language, body in BLOCK.findall(text)]


def runs(page):
    return page.parent == ROOT / "docs" and any(block.commands for block in blocks(page.read_text()))


def test_commands_in_docs_are_parsed_like_a_shell():
    text = """
```console
$ python -m harness run --set 'a={b: 1}' \\
    --seed 1   # why
make test
```

<!-- slow -->
```
.venv/bin/python -m studies papers mine
```

```yaml
python -m harness nothing
```
"""
    first, second, third = blocks(text)
    assert first.commands == [("harness", ["run", "--set", "a={b: 1}", "--seed", "1"])] and not first.slow
    assert second.commands == [("studies", ["papers", "mine"])] and second.slow
    assert third.commands == []


def subcommands(parser, above=""):
    """Yield name and parser of every command, with those inside of it."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, command in action.choices.items():
                yield f"{above}{name}", command
                yield from subcommands(command, f"{above}{name} ")


def holds_commands(command):
    return any(isinstance(action, argparse._SubParsersAction) for action in command._actions)


@pytest.mark.parametrize("program", PARSERS)
def test_the_reference_has_every_command_and_every_option(program):
    """The built page has a table of options where the source has a comment."""
    settings = runpy.run_path(str(ROOT / "docs" / "conf.py"))
    page = (ROOT / "docs" / "commands.md").read_text()
    asked = {name for top, name in settings["OPTIONS"].findall(page) if top == program}
    commands = {name: one for name, one in subcommands(PARSERS[program]()) if not holds_commands(one)}
    assert asked == set(commands)
    for name, one in commands.items():
        table = settings["options"](program, name.split())
        options = {o for action in one._actions for o in action.option_strings} - {"-h", "--help"}
        assert sorted(o for o in options if not re.search(rf"^\| `.*{o}\b", table, re.MULTILINE)) == []
    assert [name for name in commands if name.split()[0] not in page] == []


def test_the_python_reference_has_every_stable_name():
    page = (ROOT / "docs" / "api.md").read_text()
    shown = re.findall(r"^\.\. auto\w+:: (\w+)$", page, re.MULTILINE)
    assert sorted(set(harness.__all__) - set(shown)) == []


@pytest.mark.parametrize("page", READ, ids=lambda path: path.name)
def test_every_command_is_one_of_ours(page, capsys):
    for program, command in [command for block in blocks(page.read_text()) for command in block.commands]:
        try:
            PARSERS[program]().parse_args(command)
        except SystemExit as stop:  # --help ends well
            assert stop.code == 0, f"{shlex.join(command)}: {capsys.readouterr().err}"


def is_of_a_run(block):
    """Return whether a block is a run or suite file, or some sections of one."""
    return block.language == "yaml" and "claims" not in yaml.safe_load(block.body)


def has_run_files(page):
    return any(map(is_of_a_run, blocks(page.read_text())))


@pytest.mark.parametrize("page", list(filter(has_run_files, READ)), ids=lambda path: path.name)
def test_every_example_of_a_run_file_is_valid(page, tmp_path):
    """What an example leaves out is as in `BASE`; its data need not be there."""
    for block in filter(is_of_a_run, blocks(page.read_text())):
        content = read(page.name, block.body)
        if "sweep" in content:
            path = tmp_path / "suite.yaml"
            path.write_text(yaml.safe_dump({"suite": "example", "base": BASE} | content))
            assert read_suite(str(path)).combinations
        else:
            left_out = {} if "problem" in content else BASE
            assert read_spec(left_out | content)


@pytest.mark.usefixtures("blank_pictures")
@pytest.mark.parametrize("page", list(filter(runs, READ)), ids=lambda path: path.name)
def test_every_command_and_example_of_a_page_runs(page, tmp_path, monkeypatch, capsys, registries):
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    monkeypatch.chdir(tmp_path)
    for block in blocks(page.read_text()):
        if name := FILE.match(block.body):
            Path(name[1]).write_text(block.body)
        if block.slow:
            continue
        if block.language == "python" and block.body.startswith("import harness"):
            exec(compile(block.body, page.name, "exec"), {})
        for program, command in block.commands:
            with monkeypatch.context() as patch:
                if command[0] == "check" and command[1] in CHECKED:
                    patch.setattr(conformance, "CHANNEL_CHECKS", [])
                code = MAINS[program](command)
            assert code == 0, f"python -m {program} {shlex.join(command)}: {capsys.readouterr().err}"


def anchors(text):
    """Return the anchors that GitHub and the built pages give to the headings of a page."""
    heads = re.findall(
        r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE
    )
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", READ, ids=lambda path: path.name)
def test_what_a_page_points_to_is_there(page):
    for target, anchor in re.findall(r"\]\(([^)#]*)(?:#([^)]+))?\)", page.read_text()):
        if target.startswith("http"):
            continue
        path = page.parent / target if target else page
        assert path.exists(), target
        assert not anchor or path.suffix != ".md" or anchor in anchors(path.read_text()), f"{target}#{anchor}"
