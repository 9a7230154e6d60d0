"""Fourteen tasks that go beyond plain calls, as an agent with workflows, references and batches carries them out.

They are written like the ten of `tasks.py`. A step's functions (`lines`, `from_csv`, ...) are those of `pml docs
workflows`; column names and the like are in what is asked.
"""

from __future__ import annotations

from typing import Any

from benchmarks.tasks import Round, Step, Task

INVOICES = "{files}/tables/invoices.csv"


def _call(id: str, server: str, tool: str, *after: str, more: dict[str, Any] | None = None, **arguments: Any) -> Step:
    return Step(id, server, tool, arguments, after, more or {})


def _git(id: str, tool: str, *after: str, **arguments: Any) -> Step:
    return _call(id, "git", tool, *after, repo_path="{repo}", **arguments)


def _transform(id: str, expression: str) -> Step:
    return Step(id, "", "", {}, (), {"transform": expression})


def _read_result(id: str, **arguments: Any) -> Step:
    return Step(id, "", "read_result", arguments)


GIT = (
    Task(
        "stage and commit",
        "Commit the change to billing.py in {repo}, and nothing else.",
        ("stage and commit changes in git repository",),
        (
            Round(
                (
                    _git("add", "git_add", files=["billing.py"]),
                    _git("commit", "git_commit", "add", message="Refuse negative amounts"),
                ),
                ("commit",),
            ),
        ),
        ("committed successfully",),
    ),
    Task(
        "a text feeds a step",
        "Commit all files that git says are modified in {repo}, and show which they were.",
        ("stage and commit changes; git status",),
        (
            Round(
                (
                    _git("status", "git_status"),
                    _transform("files", "lines($status)[?contains(@, 'modified:')].trim(split(@, ':')[1])"),
                    _git("add", "git_add", files="$files"),
                    _git("commit", "git_commit", "add", message="Say how invoices are sent"),
                ),
                ("files", "commit"),
            ),
        ),
        ("README.md", "committed successfully"),
        ("billing.py",),
    ),
    Task(
        "fetch, save, commit",
        "Write the time it is now in Chicago to {repo}/built.json, with the time zone, and commit it.",
        ("get the current time; save it to a file; stage and commit it", "write a file"),
        (
            Round(
                (
                    _call("now", "time", "get_current_time", timezone="America/Chicago"),
                    _call("save", "filesystem", "write_file", path="{repo}/built.json", content="to_json($now)"),
                    _git("add", "git_add", "save", files=["built.json"]),
                    _git("commit", "git_commit", "add", message="Say when this was built"),
                ),
                ("now", "commit"),
            ),
        ),
        ("America/Chicago", "committed successfully"),
    ),
)

MEMORY = (
    Task(
        "a person and a company",
        "Remember that Linus works as an electrician at Volt Ltd, and show what you know of Volt Ltd.",
        ("remember a person and how they relate to a company, look them up",),
        (
            Round(
                (
                    _call(
                        "people",
                        "memory",
                        "create_entities",
                        entities=[
                            {"name": "Linus", "entityType": "person", "observations": ["electrician"]},
                            {"name": "Volt Ltd", "entityType": "company", "observations": []},
                        ],
                    ),
                    _call(
                        "relation",
                        "memory",
                        "create_relations",
                        "people",
                        relations=[{"from": "Linus", "to": "Volt Ltd", "relationType": "works at"}],
                    ),
                    _call("check", "memory", "open_nodes", "relation", names=["Volt Ltd"]),
                ),
                ("check",),
            ),
        ),
        ("works at",),
    ),
)

LARGE = (
    Task(
        "5 MB log",
        "Which invoices could not be sent according to FATAL lines of {files}/logs/worker.log?",
        ("read a text file",),
        (
            Round((_call("log", "filesystem", "read_text_file", path="{files}/logs/worker.log"),)),
            Round((_read_result("errors", ref="$log.ref", search="FATAL"),)),
        ),
        ("disk full invoice 29999", "disk full invoice 59999"),
    ),
    Task(
        "largest of many rows",
        "Which row of {files}/tables/payments.json, a list of 66,666, has the largest amount?",
        ("read a text file",),
        (
            Round((_call("rows", "filesystem", "read_text_file", path="{files}/tables/payments.json"),)),
            Round((_read_result("largest", ref="$rows.ref", path="max_by(from_json(content), &amount)"),)),
        ),
        ("row-52685",),
    ),
    Task(
        "sum of a column",
        f"What do the invoices in {INVOICES} amount to? The column is called amount.",
        ("read a text file",),
        (
            Round(
                (
                    _call("table", "filesystem", "read_text_file", path=INVOICES),
                    _transform("total", "sum(from_csv($table.content)[*].to_number(amount))"),
                ),
                ("total",),
            ),
        ),
        ("5983.0",),
    ),
    Task(
        "statistics of a column",
        f"What is the median of the column amount in {INVOICES}?",
        ("read a text file; mean and median of numbers",),
        (
            Round(
                (
                    _call("table", "filesystem", "read_text_file", path=INVOICES),
                    _transform("amounts", "from_csv($table.content)[*].amount"),
                    _call("statistics", "calc", "describe_numbers", numbers="$amounts"),
                ),
                ("statistics",),
            ),
        ),
        ('"median":50.0',),
    ),
)

SEVERAL = (
    Task(
        "an image in a batch",
        "Show me {files}/logo.png and the sample image, and add 2 and 40.",
        ("read an image file; get a tiny sample image; add two numbers",),
        (
            Round(
                (
                    _call("logo", "filesystem", "read_media_file", path="{files}/logo.png"),
                    _call("sample", "everything", "get-tiny-image"),
                    _call("sum", "everything", "get-sum", a=2, b=40),
                ),
                is_batch=True,
            ),
        ),
        ('"type":"image"', "is 42"),
    ),
    Task(
        "several files compared",
        "In which of api, database and worker do the .yaml files of {files}/staging and {files}/production differ?",
        ("compare two files",),
        (
            Round(
                (
                    _call(
                        "differences",
                        "files",
                        "compare_files",
                        more={"for_each": ["api.yaml", "database.yaml", "worker.yaml"]},
                        old_path="staging/$item",
                        new_path="production/$item",
                    ),
                ),
                ("differences",),
            ),
        ),
        ("+replicas: 5",),
    ),
    Task(
        "times in several cities",
        "It is 15:00 in Zurich. By how much do Tokyo, New York and Sydney differ?",
        ("convert a time to another timezone",),
        (
            Round(
                (
                    _call(
                        "times",
                        "time",
                        "convert_time",
                        more={"for_each": ["Asia/Tokyo", "America/New_York", "Australia/Sydney"]},
                        source_timezone="Europe/Zurich",
                        time="15:00",
                        target_timezone="$item",
                    ),
                    _transform("differences", "$times[*].time_difference"),
                ),
                ("differences",),
            ),
        ),
        ("+8.0h",),
    ),
)

NOTES = (
    Task(
        "linked notes",
        "Write a note 'Launch' and a note 'Budget', link the launch to the budget, and say what links to the budget.",
        ("create a note, link it to another note, find what links to it",),
        (
            Round(
                (
                    _call("launch", "notes", "create_note", title="Launch"),
                    _call("budget", "notes", "create_note", "launch", title="Budget"),
                    _call("link", "notes", "link_notes", from_id="$launch.id", to_id="$budget.id"),
                    _call("links", "notes", "find_backlinks", "link", note_id="$budget.id"),
                ),
                ("links",),
            ),
        ),
        ("Launch",),
    ),
    Task(
        "only what is archived",
        "Write a note 'Renew certificates' and a note 'Rotate keys', archive the first, and list what is archived.",
        ("create a note, archive it, list archived notes",),
        (
            Round(
                (
                    _call("first", "notes", "create_note", title="Renew certificates"),
                    _call("second", "notes", "create_note", "first", title="Rotate keys"),
                    _call("archive", "notes", "archive_note", "second", note_id="$first.id"),
                    _call("archived", "notes", "list_notes", "archive", archived=True),
                ),
                ("archived",),
            ),
        ),
        ("Renew certificates",),
        ("Rotate keys",),
    ),
    Task(
        "a server that is down",
        "Which issues are open in the tracker?",
        ("list the open issues of the tracker",),
        (),
        ('"server":"tracker","reason":',),
    ),
)

MORE_TASKS: tuple[Task, ...] = (*GIT, *MEMORY, *LARGE, *SEVERAL, *NOTES)
"""In the order they run in."""
