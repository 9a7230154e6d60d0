"""Ten recorded tasks on files, git, memory and time, as an agent would carry them out tool by tool.

Searches say in an agent's words what the next steps do, several actions in one request, and name no tool. The recorded
tools are those that an agent would take of the hits: what no hit named is not called.

A round holds the calls between two decisions: nothing in it needs a look at a result, so that a workflow may make all
of them in one request. Arguments refer to results of the same task as workflows do (`$step.path`); where calls are made
one by one, the agent reads the result and writes its text itself. `{files}` and `{repo}` stand for the two folders.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Step:
    """One call of a tool, or a step of a workflow.

    `after` names steps of the same round it has to wait for beside those it refers to; `more` is what only a workflow
    knows: `transform`, `for_each`, `when`. A step without a server calls a meta-tool, or nothing where it transforms.
    """

    id: str
    server: str
    tool: str
    arguments: dict[str, Any]
    after: tuple[str, ...] = ()
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def qualified_name(self) -> str:
        """The tool as the gateway lists it."""
        return f"{self.server}__{self.tool}"


@dataclass(frozen=True, slots=True)
class Round:
    """Calls that follow from what is known before them; `shown` are the results the agent has to see.

    Those of a batch have nothing to do with each other, and all of their results are seen.
    """

    steps: tuple[Step, ...]
    shown: tuple[str, ...] = ()
    is_batch: bool = False

    @property
    def is_workflow(self) -> bool:
        """Whether one request makes all of it, where there are workflows."""
        return not self.is_batch and (len(self.steps) > 1 or any(step.more for step in self.steps))


@dataclass(frozen=True, slots=True)
class Task:
    """What is asked, the searches that find its tools, and its rounds.

    `answers` must be in what the agent reads, `absent` must not be in the last of it.
    """

    name: str
    ask: str
    searches: tuple[str, ...]
    rounds: tuple[Round, ...]
    answers: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()

    @property
    def steps(self) -> list[Step]:
        """All calls, in order."""
        return [step for one in self.rounds for step in one.steps]


def _files(id: str, tool: str, *after: str, **arguments: Any) -> Step:
    return Step(id, "filesystem", tool, arguments, after)


def _git(id: str, tool: str, *after: str, **arguments: Any) -> Step:
    return Step(id, "git", tool, {"repo_path": "{repo}", **arguments}, after)


def _memory(id: str, tool: str, *after: str, **arguments: Any) -> Step:
    return Step(id, "memory", tool, arguments, after)


def _time(id: str, tool: str, *after: str, **arguments: Any) -> Step:
    return Step(id, "time", tool, arguments, after)


def _relation(source: str, relation: str, target: str) -> dict[str, str]:
    return {"from": source, "to": target, "relationType": relation}


def _entity(name: str, kind: str, *observations: str) -> dict[str, Any]:
    return {"name": name, "entityType": kind, "observations": list(observations)}


def _convert(id: str, target: str) -> Step:
    arguments = {"source_timezone": "Europe/Zurich", "time": "15:00", "target_timezone": target}
    return _time(id, "convert_time", **arguments)


FILES = (
    Task(
        "fix a port",
        "One of the YAML files in {files}/config still uses port 8080. Change it to 9090.",
        ("list the files in a folder, read text files, edit a file",),
        (
            Round((_files("list", "list_directory", path="{files}/config"),), ("list",)),
            Round(
                (
                    _files(
                        "read",
                        "read_multiple_files",
                        paths=[f"{{files}}/config/{name}.yaml" for name in ("api", "database", "worker")],
                    ),
                ),
                ("read",),
            ),
            Round(
                (
                    _files(
                        "edit",
                        "edit_file",
                        path="{files}/config/worker.yaml",
                        edits=[{"oldText": "port: 8080", "newText": "port: 9090"}],
                    ),
                    _files("check", "read_text_file", "edit", path="{files}/config/worker.yaml"),
                ),
                ("check",),
            ),
        ),
        ("port: 9090",),
    ),
    Task(
        "archive a log",
        "Copy {files}/logs/app.log into a new folder {files}/archive, and say how large the copy is.",
        ("create a folder, read a text file, write a file, get its size",),
        (
            Round(
                (
                    _files("folder", "create_directory", path="{files}/archive"),
                    _files("log", "read_text_file", path="{files}/logs/app.log"),
                    _files("copy", "write_file", "folder", path="{files}/archive/app.log", content="$log.content"),
                    _files("info", "get_file_info", "copy", path="{files}/archive/app.log"),
                ),
                ("info",),
            ),
        ),
        ("size: ",),
    ),
    Task(
        "merge reports",
        "Put the three monthly reports of {files}/reports into one file quarter.md beside them, in order.",
        ("list a folder, read text files, write a file",),
        (
            Round((_files("list", "list_directory", path="{files}/reports"),), ("list",)),
            Round(
                (
                    _files("january", "read_text_file", path="{files}/reports/1-january.md"),
                    _files("february", "read_text_file", path="{files}/reports/2-february.md"),
                    _files("march", "read_text_file", path="{files}/reports/3-march.md"),
                    _files(
                        "merged",
                        "write_file",
                        path="{files}/reports/quarter.md",
                        content="$january.content\n$february.content\n$march.content\n",
                    ),
                ),
                ("merged",),
            ),
        ),
        ("1-january.md",),
    ),
)

GIT = (
    Task(
        "release notes",
        "Write {repo}/NOTES.md with what changed since v1.0 in the repository {repo}.",
        ("git log and diff since a tag; write a file",),
        (
            Round(
                (
                    _git("log", "git_log", max_count=5),
                    _git("diff", "git_diff", target="v1.0", context_lines=1),
                ),
                ("log", "diff"),
            ),
            Round(
                (
                    _files(
                        "notes",
                        "write_file",
                        path="{repo}/NOTES.md",
                        content="# Since v1.0\n\n- totals are rounded to cents\n- invoices know their currency\n",
                    ),
                ),
                ("notes",),
            ),
        ),
        ("Round totals to cents",),
    ),
    Task(
        "commit work",
        "Commit what I changed in {repo}, with a fitting message.",
        (
            "show the git status, the unstaged changes and the log",
            "stage and commit changes",
        ),
        (
            Round((_git("status", "git_status"), _git("diff", "git_diff_unstaged")), ("status", "diff")),
            Round(
                (
                    _git("add", "git_add", files=["billing.py", "NOTES.md"]),
                    _git("commit", "git_commit", "add", message="Refuse negative amounts, and add release notes"),
                    _git("log", "git_log", "commit", max_count=1),
                ),
                ("log",),
            ),
        ),
        ("Refuse negative amounts",),
    ),
    Task(
        "branch with a file",
        "In {repo}, add an MIT licence on a new branch named licence.",
        (
            "create a git branch and switch to it; write a file",
            "stage and commit changes; git status",
        ),
        (
            Round(
                (
                    _git("branch", "git_create_branch", branch_name="licence"),
                    _git("switch", "git_checkout", "branch", branch_name="licence"),
                    _files(
                        "write",
                        "write_file",
                        "switch",
                        path="{repo}/LICENSE",
                        content="MIT License\n\nPermission is hereby granted, free of charge, to any person ...\n",
                    ),
                    _git("add", "git_add", "write", files=["LICENSE"]),
                    _git("commit", "git_commit", "add", message="Add the MIT licence"),
                    _git("status", "git_status", "commit"),
                ),
                ("commit", "status"),
            ),
        ),
        ("licence",),
    ),
)

MEMORY = (
    Task(
        "remember a team",
        "Remember: Ada leads the billing team, Grace works in it, and both look after the invoices service.",
        ("remember people and how they relate to each other; look them up",),
        (
            Round(
                (
                    _memory(
                        "entities",
                        "create_entities",
                        entities=[
                            _entity("Ada", "person", "leads the billing team"),
                            _entity("Grace", "person", "works in the billing team"),
                            _entity("billing", "team", "bills customers monthly"),
                            _entity("invoices", "service", "written in Python"),
                        ],
                    ),
                    _memory(
                        "relations",
                        "create_relations",
                        "entities",
                        relations=[
                            _relation("Ada", "leads", "billing"),
                            _relation("Grace", "works in", "billing"),
                            _relation("billing", "looks after", "invoices"),
                        ],
                    ),
                    _memory("check", "open_nodes", "relations", names=["billing"]),
                ),
                ("check",),
            ),
        ),
        ("bills customers monthly",),
    ),
    Task(
        "update a person",
        "Grace took over the invoices service from today. Update what you know about her.",
        ("find a person in memory; add an observation; relate her to a service",),
        (
            Round((_memory("found", "search_nodes", query="Grace"),), ("found",)),
            Round(
                (
                    _memory(
                        "note",
                        "add_observations",
                        observations=[{"entityName": "Grace", "contents": ["took over the invoices service"]}],
                    ),
                    # One after the other: of two writes at once, this server keeps one.
                    _memory("relation", "create_relations", "note", relations=[_relation("Grace", "owns", "invoices")]),
                    _memory("check", "open_nodes", "relation", names=["Grace", "invoices"]),
                ),
                ("check",),
            ),
        ),
        ("took over the invoices service",),
    ),
)

TIME = (
    Task(
        "meeting times",
        "Our meeting is at 15:00 in Zurich today. Write the local times for Tokyo, New York and Sydney into "
        "{files}/meeting.md.",
        ("current time, convert it to other timezones, and write a file",),
        (
            Round(
                (
                    _time("now", "get_current_time", timezone="Europe/Zurich"),
                    _convert("tokyo", "Asia/Tokyo"),
                    _convert("new_york", "America/New_York"),
                    _convert("sydney", "Australia/Sydney"),
                ),
                ("now", "tokyo", "new_york", "sydney"),
            ),
            Round(
                (
                    _files(
                        "write",
                        "write_file",
                        path="{files}/meeting.md",
                        content="# Meeting\n\n- Zurich 15:00\n- Tokyo, New York and Sydney as converted\n",
                    ),
                ),
                ("write",),
            ),
        ),
        ("time_difference",),
    ),
    Task(
        "onboarding",
        "Prepare the onboarding for {repo}: remember the repository and its branches, and write "
        "{files}/onboarding.md with its readme and its newest commits.",
        (
            "read a text file, git log, list branches",
            "current time; create entities and relations; write a file",
            "open entities by name",
        ),
        (
            Round(
                (
                    _files("readme", "read_text_file", path="{repo}/README.md"),
                    _git("log", "git_log", max_count=3),
                    _git("branches", "git_branch", branch_type="local"),
                    _time("now", "get_current_time", timezone="Europe/Zurich"),
                ),
                ("readme", "branches", "now"),
            ),
            Round(
                (
                    _memory(
                        "entities",
                        "create_entities",
                        entities=[_entity("billing repository", "repository", "branches main and licence")],
                    ),
                    _memory(
                        "relations",
                        "create_relations",
                        "entities",
                        relations=[_relation("billing", "develops", "billing repository")],
                    ),
                    _files(
                        "write",
                        "write_file",
                        path="{files}/onboarding.md",
                        content="# Onboarding\n\nStart with the readme, then read the newest commits.\n",
                    ),
                    _memory("check", "open_nodes", "relations", names=["billing repository"]),
                ),
                ("write", "check"),
            ),
        ),
        ("branches main and licence",),
    ),
)

TASKS: tuple[Task, ...] = (*FILES, *GIT, *MEMORY, *TIME)
"""In the order they run in: later ones build on what earlier ones left behind."""
