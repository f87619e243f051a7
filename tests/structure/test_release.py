"""The files around a release agree: versions, addresses, supported Pythons, commands of the workflows, issue forms."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import holdfast
from tools.pypi_readme import with_absolute_links

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LAB = tomllib.loads((ROOT / "packages" / "lab" / "pyproject.toml").read_text())
REPOSITORY = PROJECT["project"]["urls"]["Repository"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").iterdir())
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
NEWEST = "3.14"  # the newest Python with all tests


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def steps(path: Path) -> list[dict[str, Any]]:
    return [step for job in load(path)["jobs"].values() for step in job.get("steps", ())]


def test_both_distributions_and_their_pins_have_the_version_of_the_package() -> None:
    version = holdfast.__version__

    assert PROJECT["project"]["version"] == LAB["project"]["version"] == version
    assert f"holdfast=={version}" in LAB["project"]["dependencies"]
    assert PROJECT["project"]["optional-dependencies"]["lab"] == [f"holdfast-lab=={version}"]


def test_the_changelog_begins_with_unreleased_changes_and_this_version() -> None:
    headings = re.findall(r"^## \[(.+?)\](?: - (\S+))?$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)

    assert [name for name, _ in headings[:2]] == ["Unreleased", holdfast.__version__]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d", date) for _, date in headings[1:])


def test_the_distributions_have_the_same_classifiers_for_python_and_the_workflow_tests_them() -> None:
    def pythons(project: Any) -> list[str]:
        prefix = "Programming Language :: Python :: 3."
        return [line.rpartition(" ")[2] for line in project["project"]["classifiers"] if line.startswith(prefix)]

    jobs = load(ROOT / ".github" / "workflows" / "ci.yml")["jobs"]

    assert pythons(PROJECT) == pythons(LAB) == jobs["test"]["strategy"]["matrix"]["python"]
    assert pythons(PROJECT)[-1] == NEWEST
    assert {"3.14t", "3.15"} <= set(jobs["preview"]["strategy"]["matrix"]["python"])


def test_all_addresses_of_the_repository_are_the_one_of_the_project() -> None:
    owner = REPOSITORY.removesuffix("/holdfast")
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    texts = {
        name: (ROOT / name).read_text(errors="replace")
        for name in files.split("\0")
        if name.endswith((".md", ".yml", ".yaml", ".toml", ".py")) and (ROOT / name).is_file()
    }
    addresses = {
        (name, address)
        for name, text in texts.items()
        for address in re.findall(r"https://github\.com/[\w.-]*holdfast[\w.-]*/[\w.-]+", text)
    }

    assert owner.startswith("https://github.com/")
    assert {name for name, _ in addresses} >= {"SECURITY.md", "docs/security.md"}
    assert {address for _, address in addresses} == {REPOSITORY}


def test_links_of_the_long_description_are_absolute() -> None:
    text = with_absolute_links((ROOT / "README.md").read_text(), REPOSITORY, "1.2.3")
    code = with_absolute_links("`[a](b.md)` [a](b.md#c) ![a](b.svg) [a](https://b) [a](#b)", "R", "1")

    prose = re.sub(r"^```.*?^```|`[^`\n]+`", "", text, flags=re.DOTALL | re.MULTILINE)
    assert re.findall(r"\]\((?!https://|#)[^)]*\)", prose) == []
    assert f"{REPOSITORY}/blob/v1.2.3/docs/first-lock.md" in text
    assert code == "`[a](b.md)` [a](R/blob/v1/b.md#c) ![a](R/raw/v1/b.svg) [a](https://b) [a](#b)"


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_uses_pinned_actions_and_targets_that_exist(path: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    actions = [step["uses"] for step in steps(path) if "uses" in step]
    used_targets = [target for step in steps(path) for target in re.findall(r"\bmake ([a-z-]+)", step.get("run", ""))]

    assert actions
    assert [action for action in actions if not re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}", action)] == []
    assert used_targets
    assert set(used_targets) <= targets
    assert load(path)["permissions"] == {"contents": "read"}


def test_the_release_uses_no_secret_and_publishes_what_was_built_and_tested() -> None:
    path = ROOT / ".github" / "workflows" / "release.yml"
    jobs = load(path)["jobs"]
    publish = jobs["publish"]

    assert jobs["tests"]["uses"] == "./.github/workflows/ci.yml"
    assert (publish["needs"], publish["permissions"]) == (["tests", "build"], {"id-token": "write"})
    assert publish["environment"] == "release"
    assert "secrets." not in path.read_text()


def test_a_workflow_that_runs_all_tests_has_the_commits_of_earlier_releases() -> None:
    for path in WORKFLOWS:
        for job in load(path)["jobs"].values():
            if any(re.search(r"make test\b(?!-)", step.get("run", "")) for step in job.get("steps", ())):
                (checkout,) = [step for step in job["steps"] if step.get("uses", "").startswith("actions/checkout@")]
                assert checkout["with"]["fetch-depth"] == 0


@pytest.mark.parametrize("path", [form for form in FORMS if form.name != "config.yml"], ids=lambda path: path.name)
def test_a_form_names_its_fields_and_requires_answers(path: Path) -> None:
    form = load(path)
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    names = [field["id"] for field in fields]

    assert {"name", "description", "labels", "body"} == form.keys()
    assert {field["type"] for field in fields} <= {"input", "textarea"}
    assert all(field["attributes"]["label"] for field in fields)
    assert all(field["validations"] == {"required": True} for field in fields)
    assert len(set(names)) == len(names)
    assert path.name != "held-twice.yml" or names[0] == "history"


def test_questions_and_private_reports_have_links() -> None:
    (config,) = [load(form) for form in FORMS if form.name == "config.yml"]

    assert {link["url"] for link in config["contact_links"]} == {
        f"{REPOSITORY}/discussions",
        f"{REPOSITORY}/security/advisories/new",
    }


def test_hooks_of_pre_commit_run_the_tools_of_the_environment() -> None:
    (repository,) = load(ROOT / ".pre-commit-config.yaml")["repos"]
    tools = [re.fullmatch(r"\.venv/bin/(\w+)( .*)?", hook["entry"]) for hook in repository["hooks"]]

    assert repository["repo"] == "local"
    dev = PROJECT["dependency-groups"]["dev"]
    for tool in tools:
        assert tool is not None
        assert any(str(requirement).startswith(tool[1]) for requirement in dev)
