"""Calls of tools of published servers, as models guess them before they saw a schema.

Written without knowledge of how the gateway reads calls, and judged by what a careful human would accept: each says
why. A call that has one reading is done, and exactly what was meant reaches the server; any other is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.first_try.written import Arguments, Must, Written
from tests.support.scripted_server import Definition, ScriptedServer, text_result

_LISTED = Path(__file__).resolve().parents[2] / "tests" / "data"
_ISSUES = (
    {"number": 11, "title": "Totals are off by a cent", "state": "open", "comments": 4},
    {"number": 12, "title": "The export forgets a row", "state": "open", "comments": 1},
)
_PULL = {"number": 7, "title": "Round once", "merged": False, "comments": 4}


@dataclass(frozen=True, slots=True)
class Unseen(Written):
    """A call, and why a careful human would accept or refuse it."""

    why: str = ""


_Row = tuple[str, Arguments, Arguments, str]
"""A tool, the arguments sent, those meant, and why."""

REPO = {"owner": "octo", "repo": "site"}
SITE = {"repo_path": "/srv/site"}
CHANNEL = {"channel_id": "C012AB3CD"}
WEB = {"resourceType": "pod", "name": "web-1"}


def written() -> list[Written]:
    """All calls, kind by kind."""
    return [
        *_calls("guessed names", "be done", _NAMES_DONE),
        *_calls("guessed names", "be refused", _NAMES_REFUSED),
        *_calls("nested keys", "be done", _NESTED_DONE),
        *_calls("nested keys", "be refused", _NESTED_REFUSED),
        *_calls("placeholders left", "be refused", _PLACEHOLDERS),
        *_calls("like placeholders", "be done", _LIKE_PLACEHOLDERS),
        *_requests("references", "be done", _REFERENCES_DONE),
        *_requests("references", "be refused", _REFERENCES_REFUSED),
    ]


def _calls(kind: str, must: Must, rows: tuple[_Row, ...]) -> Iterator[Written]:
    for name, sent, meant, why in rows:
        yield Unseen(
            kind,
            "call_tool",
            {"name": name, "arguments": sent},
            "call_tool",
            {"name": name, "arguments": meant},
            must,
            why,
        )


def _requests(kind: str, must: Must, rows: tuple[_Row, ...]) -> Iterator[Written]:
    for tool, sent, meant, why in rows:
        yield Unseen(kind, tool, sent, tool, meant, must, why)


_NAMES_DONE: tuple[_Row, ...] = (
    (
        "filesystem__read_text_file",
        {"filename": "/srv/notes.md"},
        {"path": "/srv/notes.md"},
        "the only text it takes is the file's path",
    ),
    (
        "filesystem__write_file",
        {"filepath": "/srv/out.md", "text": "All is well."},
        {"path": "/srv/out.md", "content": "All is well."},
        "a file has one path and one content",
    ),
    (
        "filesystem__move_file",
        {"old_path": "/srv/a.md", "new_path": "/srv/b.md"},
        {"source": "/srv/a.md", "destination": "/srv/b.md"},
        "old and new are source and destination of a move",
    ),
    (
        "filesystem__search_files",
        {"directory": "/srv", "glob": "**/*.md"},
        {"path": "/srv", "pattern": "**/*.md"},
        "a glob is the pattern, the directory where to look",
    ),
    (
        "filesystem__list_directory_with_sizes",
        {"path": "/srv", "order_by": "size"},
        {"path": "/srv", "sortBy": "size"},
        "to order is to sort, and the value is one of its choices",
    ),
    (
        "filesystem__directory_tree",
        {"path": "/srv/site", "ignore": ["node_modules"]},
        {"path": "/srv/site", "excludePatterns": ["node_modules"]},
        "what is to be ignored is excluded; nothing else takes a list",
    ),
    (
        "filesystem__read_text_file",
        {"path": "/var/log/app.log", "last_lines": 50},
        {"path": "/var/log/app.log", "tail": 50},
        "the tail is described as the last lines; the head is the first",
    ),
    (
        "git__git_commit",
        {"repo": "/srv/site", "msg": "Round totals once"},
        {**SITE, "message": "Round totals once"},
        "an abbreviation, and the path of the repository",
    ),
    (
        "git__git_log",
        {"repository": "/srv/site", "n": 5},
        {**SITE, "max_count": 5},
        "`git log -n 5`; nothing else takes a number",
    ),
    (
        "git__git_log",
        {**SITE, "since": "2026-01-01", "until": "2026-02-01"},
        {**SITE, "start_timestamp": "2026-01-01", "end_timestamp": "2026-02-01"},
        "git's own words for the start and the end",
    ),
    (
        "git__git_checkout",
        {**SITE, "branch": "release"},
        {**SITE, "branch_name": "release"},
        "the branch is given by its name",
    ),
    (
        "git__git_create_branch",
        {**SITE, "name": "hotfix", "from": "release"},
        {**SITE, "branch_name": "hotfix", "base_branch": "release"},
        "the name of what is created, and what it is created from",
    ),
    (
        "git__git_diff",
        {**SITE, "target": "main", "context": 5},
        {**SITE, "target": "main", "context_lines": 5},
        "the lines of context; nothing else takes a number",
    ),
    (
        "git__git_commit",
        {"repo-path": "/srv/site", "Message": "Round totals once"},
        {**SITE, "message": "Round totals once"},
        "the same words with other separators and capitals",
    ),
    (
        "github__add_issue_comment",
        {**REPO, "issue": 12, "comment": "Seen again."},
        {**REPO, "issue_number": 12, "body": "Seen again."},
        "a number for the issue, the text for its comment",
    ),
    (
        "github__create_issue",
        {**REPO, "title": "Totals are off", "description": "By a cent.", "assignee": "ada"},
        {**REPO, "title": "Totals are off", "body": "By a cent.", "assignees": ["ada"]},
        "the description of an issue is its body; one assignee is a list of one",
    ),
    (
        "github__list_issues",
        {**REPO, "status": "closed", "limit": 10},
        {**REPO, "state": "closed", "per_page": 10},
        "the value is a state; a limit is how many a page has",
    ),
    (
        "github__create_pull_request",
        {**REPO, "title": "Round once", "source_branch": "fix", "target_branch": "main"},
        {**REPO, "title": "Round once", "head": "fix", "base": "main"},
        "GitLab's words: head is the source, base the target",
    ),
    (
        "github__merge_pull_request",
        {**REPO, "pr_number": 7, "method": "squash"},
        {**REPO, "pull_number": 7, "merge_method": "squash"},
        "PR is the pull request, and squash is a method of merging",
    ),
    (
        "github__create_branch",
        {**REPO, "branch_name": "hotfix", "base": "release"},
        {**REPO, "branch": "hotfix", "from_branch": "release"},
        "a new branch has a name and a base",
    ),
    (
        "github__search_repositories",
        {"q": "mcp gateway", "page_size": 5},
        {"query": "mcp gateway", "perPage": 5},
        "q is the query, the size of a page is how many it has",
    ),
    (
        "gitlab__create_merge_request",
        {"project": "42", "title": "Round once", "head": "fix", "base": "main", "body": "By a cent."},
        {
            "project_id": "42",
            "title": "Round once",
            "source_branch": "fix",
            "target_branch": "main",
            "description": "By a cent.",
        },
        "GitHub's words for what GitLab takes",
    ),
    (
        "gitlab__get_file_contents",
        {"project_id": "42", "path": "README.md", "branch": "main"},
        {"project_id": "42", "file_path": "README.md", "ref": "main"},
        "a branch is a ref, and nothing else takes one",
    ),
    (
        "slack__slack_post_message",
        {"channel": "C012AB3CD", "message": "Deployed."},
        {**CHANNEL, "text": "Deployed."},
        "the id of a channel, and the text of the message",
    ),
    (
        "slack__slack_add_reaction",
        {**CHANNEL, "ts": "1700000000.000100", "emoji": "eyes"},
        {**CHANNEL, "timestamp": "1700000000.000100", "reaction": "eyes"},
        "Slack's own `ts`; a reaction is an emoji",
    ),
    (
        "kubernetes__kubectl_get",
        {"kind": "pods", "ns": "shop"},
        {"resourceType": "pods", "namespace": "shop"},
        "Kubernetes' own words for both",
    ),
    (
        "kubernetes__kubectl_scale",
        {"deployment": "web", "namespace": "shop", "replica_count": 3},
        {"name": "web", "namespace": "shop", "replicas": 3},
        "the name is described as that of the deployment",
    ),
    (
        "kubernetes__exec_in_pod",
        {"pod": "web-1", "cmd": ["ls", "-l"], "timeout_ms": 30000},
        {"name": "web-1", "command": ["ls", "-l"], "timeout": 30000},
        "the name is that of the pod, and the timeout is described in milliseconds",
    ),
    (
        "kubernetes__port_forward",
        {"resourceType": "service", "resourceName": "web", "local_port": 8080, "remote_port": 80},
        {"resourceType": "service", "resourceName": "web", "localPort": 8080, "targetPort": 80},
        "two ports: the one that is not local is the target",
    ),
    (
        "playwright__browser_type",
        {"selector": "#search", "value": "shoes"},
        {"target": "#search", "text": "shoes"},
        "the target may be a selector, and what is typed is the text",
    ),
    (
        "playwright__browser_wait_for",
        {"seconds": 3},
        {"time": 3},
        "the time is in seconds; nothing else takes a number",
    ),
    (
        "playwright__browser_resize",
        {"w": 1280, "h": 720},
        {"width": 1280, "height": 720},
        "w and h are width and height of a window",
    ),
    (
        "maps__maps_directions",
        {"from": "Bern", "to": "Basel", "travel_mode": "walking"},
        {"origin": "Bern", "destination": "Basel", "mode": "walking"},
        "from and to of a way are origin and destination",
    ),
    (
        "maps__maps_reverse_geocode",
        {"lat": 46.948, "lng": 7.447},
        {"latitude": 46.948, "longitude": 7.447},
        "the usual abbreviations",
    ),
    (
        "maps__maps_search_places",
        {"keyword": "pharmacy", "radius_meters": 800},
        {"query": "pharmacy", "radius": 800},
        "the radius is described in meters",
    ),
    (
        "time__convert_time",
        {"from_timezone": "Europe/Zurich", "time": "09:30", "to_timezone": "Asia/Tokyo"},
        {"source_timezone": "Europe/Zurich", "time": "09:30", "target_timezone": "Asia/Tokyo"},
        "from and to are source and target",
    ),
    (
        "fetch__fetch",
        {"uri": "https://example.org/", "max_chars": 2000},
        {"url": "https://example.org/", "max_length": 2000},
        "the length is described in characters",
    ),
    (
        "notion__API-retrieve-a-page",
        {"id": "59833787-2cf9-4fdf-8782-e53db20768a5"},
        {"page_id": "59833787-2cf9-4fdf-8782-e53db20768a5"},
        "the only id of a tool that takes one parameter",
    ),
    (
        "digitalocean__domain_record_create",
        {"domain": "example.org", "record_type": "A", "name": "www", "ip": "203.0.113.5"},
        {"domain": "example.org", "type": "A", "name": "www", "data": "203.0.113.5"},
        "the data of an A record is its address, and it is needed",
    ),
    (
        "filesystem__write_file",
        {"Pfad": "/srv/bericht.md", "Inhalt": "Alles gut."},
        {"path": "/srv/bericht.md", "content": "Alles gut."},
        "German for path and content, and both are needed",
    ),
)

_NAMES_REFUSED: tuple[_Row, ...] = (
    # Another unit.
    ("playwright__browser_wait_for", {"time_ms": 3000}, {"time": 3}, "the time is in seconds: 3000 of them"),
    (
        "maps__maps_search_places",
        {"query": "pharmacy", "radius_km": 2},
        {"query": "pharmacy", "radius": 2000},
        "the radius is in meters",
    ),
    (
        "kubernetes__exec_in_pod",
        {"name": "web-1", "command": ["ls"], "timeout_seconds": 30},
        {"name": "web-1", "command": ["ls"], "timeout": 30000},
        "the timeout is in milliseconds",
    ),
    (
        "kubernetes__kubectl_delete",
        {**WEB, "gracePeriodMs": 5000},
        {**WEB, "gracePeriodSeconds": 5},
        "the period is in seconds",
    ),
    (
        "fetch__fetch",
        {"url": "https://example.org/", "max_tokens": 500},
        {"url": "https://example.org/", "max_length": 2000},
        "the length is in characters",
    ),
    (
        "digitalocean__volume_create",
        {"name": "data", "region": "fra1", "size_mb": 102400},
        {"name": "data", "region": "fra1", "size_gigabytes": 100},
        "the size is in gigabytes",
    ),
    # Two candidates.
    (
        "slack__slack_reply_to_thread",
        {"id": "1700000000.000100", "text": "Done."},
        {**CHANNEL, "thread_ts": "1700000000.000100", "text": "Done."},
        "channel and thread are both missing",
    ),
    (
        "kubernetes__port_forward",
        {"resourceType": "pod", "resourceName": "web-1", "port": 8080},
        {"resourceType": "pod", "resourceName": "web-1", "localPort": 8080, "targetPort": 8080},
        "the local port or the target",
    ),
    (
        "playwright__browser_drag",
        {"element": "the red ball", "startTarget": "e5", "endTarget": "e9"},
        {"startElement": "the red ball", "startTarget": "e5", "endTarget": "e9"},
        "the element at the start or the one at the end",
    ),
    (
        "git__git_log",
        {**SITE, "timestamp": "2026-01-01"},
        {**SITE, "start_timestamp": "2026-01-01"},
        "commits before it or after it",
    ),
    (
        "filesystem__read_text_file",
        {"path": "/var/log/app.log", "line_count": 20},
        {"path": "/var/log/app.log", "tail": 20},
        "the first lines or the last",
    ),
    (
        "github__merge_pull_request",
        {**REPO, "pull_number": 7, "commit": "Round once"},
        {**REPO, "pull_number": 7, "commit_title": "Round once"},
        "the title of the commit or its message",
    ),
    (
        "github__list_pull_requests",
        {**REPO, "branch": "release"},
        {**REPO, "base": "release"},
        "from the branch (head) or into it (base)",
    ),
    (
        "time__convert_time",
        {"timezone": "Asia/Tokyo", "time": "09:30"},
        {"source_timezone": "Europe/Zurich", "time": "09:30", "target_timezone": "Asia/Tokyo"},
        "out of the zone or into it",
    ),
    # What is needed is missing, and what is there means something else.
    (
        "slack__slack_post_message",
        {"user": "ada", "text": "Deployed."},
        {**CHANNEL, "text": "Deployed."},
        "a user is no channel",
    ),
    (
        "git__git_commit",
        {**SITE, "author": "Ada <ada@example.org>"},
        {**SITE, "message": "Round totals once"},
        "an author is no message",
    ),
    (
        "kubernetes__kubectl_scale",
        {"name": "web", "memory": 512},
        {"name": "web", "replicas": 3},
        "an amount of memory is no number of replicas",
    ),
    (
        "playwright__browser_click",
        {"x": 120, "y": 48},
        {"target": "e14"},
        "a position is no target",
    ),
    # The contrary, and what no parameter means.
    (
        "github__create_repository",
        {"name": "site", "public": True},
        {"name": "site", "private": False},
        "public is the contrary of private",
    ),
    (
        "git__git_reset",
        {**SITE, "mode": "hard"},
        SITE,
        "it only unstages: to do that instead is not what was asked for",
    ),
)

_EDIT = {"oldText": "round(x, 1)", "newText": "round(x, 2)"}
_FORM = {"target": "#mail", "name": "E-mail", "type": "textbox", "value": "ada@example.org"}
_REVIEW = {**REPO, "pull_number": 7, "body": "Two remarks.", "event": "COMMENT"}
_PAGE = "59833787-2cf9-4fdf-8782-e53db20768a5"

_NESTED_DONE: tuple[_Row, ...] = (
    (
        "filesystem__edit_file",
        {"path": "/srv/a.py", "edits": [{"old_string": "round(x, 1)", "new_string": "round(x, 2)"}]},
        {"path": "/srv/a.py", "edits": [_EDIT]},
        "another editor's words for old and new",
    ),
    (
        "filesystem__edit_file",
        {"path": "/srv/a.py", "edits": [{"search": "round(x, 1)", "replace": "round(x, 2)"}]},
        {"path": "/srv/a.py", "edits": [_EDIT]},
        "what is searched is old, what replaces it is new",
    ),
    (
        "filesystem__edit_file",
        {"file": "/srv/a.py", "edits": [{"from": "round(x, 1)", "to": "round(x, 2)"}, _EDIT], "dry_run": True},
        {"path": "/srv/a.py", "edits": [_EDIT, _EDIT], "dryRun": True},
        "from old to new, in one of two edits",
    ),
    (
        "github__push_files",
        {
            **REPO,
            "branch": "main",
            "files": [{"filename": "a.md", "text": "A"}, {"filename": "b.md", "text": "B"}],
            "message": "Add",
        },
        {
            **REPO,
            "branch": "main",
            "files": [{"path": "a.md", "content": "A"}, {"path": "b.md", "content": "B"}],
            "message": "Add",
        },
        "a file has one path and one content",
    ),
    (
        "gitlab__push_files",
        {"project_id": "42", "branch": "main", "files": [{"path": "a.md", "content": "A"}], "message": "Add"},
        {
            "project_id": "42",
            "branch": "main",
            "files": [{"file_path": "a.md", "content": "A"}],
            "commit_message": "Add",
        },
        "GitHub's words for what GitLab takes",
    ),
    (
        "memory__create_entities",
        {"entities": [{"name": "Ada", "type": "person", "facts": ["likes engines"]}]},
        {"entities": [{"name": "Ada", "entityType": "person", "observations": ["likes engines"]}]},
        "the type is a text, the facts are the only list",
    ),
    (
        "memory__create_relations",
        {"relations": [{"source": "Ada", "target": "Engine", "relation": "describes"}]},
        {"relations": [{"from": "Ada", "to": "Engine", "relationType": "describes"}]},
        "source and target of an arrow, and what it is",
    ),
    (
        "memory__add_observations",
        {"observations": [{"entity": "Ada", "observations": ["writes notes"]}]},
        {"observations": [{"entityName": "Ada", "contents": ["writes notes"]}]},
        "one text and one list are needed, and given",
    ),
    (
        "maps__maps_elevation",
        {"locations": [{"lat": 46.948, "lng": 7.447}, {"lat": 47.376, "lng": 8.541}]},
        {"locations": [{"latitude": 46.948, "longitude": 7.447}, {"latitude": 47.376, "longitude": 8.541}]},
        "the usual abbreviations, in each",
    ),
    (
        "maps__maps_search_places",
        {"query": "pharmacy", "center": {"lat": 46.948, "lon": 7.447}},
        {"query": "pharmacy", "location": {"latitude": 46.948, "longitude": 7.447}},
        "the location is described as the center, and is the only object",
    ),
    (
        "playwright__browser_fill_form",
        {"fields": [{"selector": "#mail", "name": "E-mail", "type": "textbox", "text": "ada@example.org"}]},
        {"fields": [_FORM]},
        "the target may be a selector, and the text is the value",
    ),
    (
        "github__create_pull_request_review",
        {**_REVIEW, "comments": [{"file": "a.py", "line": 10, "comment": "Why once?"}]},
        {**_REVIEW, "comments": [{"path": "a.py", "line": 10, "body": "Why once?"}]},
        "the file is given by its path, the comment is its body",
    ),
    (
        "notion__API-update-page-markdown",
        {
            "page_id": _PAGE,
            "type": "update_content",
            "update_content": {"content_updates": [{"old_text": "draft", "new_text": "final"}]},
        },
        {
            "page_id": _PAGE,
            "type": "update_content",
            "update_content": {"content_updates": [{"old_str": "draft", "new_str": "final"}]},
        },
        "old and new are both needed; that others are allowed does not make them do",
    ),
    (
        "notion__API-post-search",
        {"query": "Roadmap", "filters": {"property": "object", "value": "page"}},
        {"query": "Roadmap", "filter": {"property": "object", "value": "page"}},
        "one filter, by the plural",
    ),
)

_NESTED_REFUSED: tuple[_Row, ...] = (
    (
        "filesystem__edit_file",
        {"path": "/srv/a.py", "edits": [{"text": "round(x, 2)"}]},
        {"path": "/srv/a.py", "edits": [_EDIT]},
        "the old text or the new",
    ),
    (
        "filesystem__edit_file",
        {"path": "/srv/a.py", "edits": [{"line": 12, "newText": "round(x, 2)"}]},
        {"path": "/srv/a.py", "edits": [_EDIT]},
        "a line's number is no text, and the old text is needed",
    ),
    (
        "memory__create_relations",
        {"relations": [{"entity1": "Ada", "entity2": "Engine", "relationType": "describes"}]},
        {"relations": [{"from": "Ada", "to": "Engine", "relationType": "describes"}]},
        "the direction is not said",
    ),
    (
        "github__push_files",
        {
            **REPO,
            "branch": "main",
            "files": [{"path": "a.png", "content": "iVBORw0KGgo=", "encoding": "base64"}],
            "message": "Add",
        },
        {**REPO, "branch": "main", "files": [{"path": "a.png", "content": "iVBORw0KGgo="}], "message": "Add"},
        "without the encoding, another content would be written",
    ),
    (
        "maps__maps_search_places",
        {"query": "pharmacy", "location": {"city": "Bern"}},
        {"query": "pharmacy", "location": {"latitude": 46.948, "longitude": 7.447}},
        "a city is no coordinate, and without one it searches elsewhere",
    ),
    (
        "playwright__browser_fill_form",
        {"fields": [{**_FORM, "clear_first": False}]},
        {"fields": [_FORM]},
        "nothing says whether a field is cleared: it could lose what it holds",
    ),
)

_PLACEHOLDERS: tuple[_Row, ...] = (
    (
        "slack__slack_post_message",
        {"channel_id": "<channel_id>", "text": "Deployed."},
        {**CHANNEL, "text": "Deployed."},
        "the parameter's name in angle brackets",
    ),
    (
        "github__get_issue",
        {"owner": "octo", "repo": "{{repo}}", "issue_number": 12},
        {**REPO, "issue_number": 12},
        "a variable of a template; no repository is called so",
    ),
    (
        "notion__API-retrieve-a-page",
        {"page_id": "YOUR_PAGE_ID_HERE"},
        {"page_id": _PAGE},
        "it says itself what belongs there",
    ),
    (
        "gitlab__create_issue",
        {"project_id": "TODO", "title": "Totals are off"},
        {"project_id": "42", "title": "Totals are off"},
        "no id of a project",
    ),
    (
        "maps__maps_place_details",
        {"place_id": "‹place id›"},
        {"place_id": "ChIJN1t_tDeuEmsRUsoyG83frY4"},
        "angle quotation marks, as documents print them",
    ),
    (
        "fetch__fetch",
        {"url": "https://api.example.org/v1/me?token=<your token>"},
        {"url": "https://api.example.org/v1/me?token=k3jH2"},
        "no address has such a part",
    ),
    (
        "filesystem__read_text_file",
        {"path": "<string>"},
        {"path": "/srv/notes.md"},
        "the type in place of a value",
    ),
    (
        "slack__slack_get_user_profile",
        {"user_id": "string"},
        {"user_id": "U061F7AUR"},
        "the type in place of a value, as examples of an API have it",
    ),
    (
        "kubernetes__kubectl_logs",
        {"resourceType": "pod", "name": "${POD_NAME}", "namespace": "shop"},
        {"resourceType": "pod", "name": "web-1", "namespace": "shop"},
        "a variable of a shell that nobody fills in",
    ),
    (
        "memory__open_nodes",
        {"names": ["Ada", "<other name>"]},
        {"names": ["Ada", "Engine"]},
        "one of two is not filled in",
    ),
    (
        "filesystem__edit_file",
        {"path": "/srv/a.py", "edits": [{"oldText": "<old text>", "newText": "<new text>"}]},
        {"path": "/srv/a.py", "edits": [_EDIT]},
        "the parameters' names in words, in angle brackets",
    ),
    (
        "github__create_issue",
        {**REPO, "title": "Totals are off", "assignees": ["YOUR_USERNAME"]},
        {**REPO, "title": "Totals are off", "assignees": ["ada"]},
        "no user is called so",
    ),
    (
        "git__git_checkout",
        {**SITE, "branch_name": "[branch name]"},
        {**SITE, "branch_name": "release"},
        "brackets and a space, which no branch can have",
    ),
    (
        "digitalocean__droplet_delete",
        {"droplet_id": "<droplet_id>"},
        {"droplet_id": 3164444},
        "the parameter's name in angle brackets",
    ),
    (
        "slack__slack_get_channel_history",
        {"channel_id": "CXXXXXXXXXX", "limit": 5},
        {**CHANNEL, "limit": 5},
        "crosses in place of an id",
    ),
)

_TEMPLATE = (
    "<h1>{{title}}</h1>\n<p>Dear <name>,</p>\n<p>clone {{repo}} and set TOKEN=<your token>.</p>\n<!-- TODO: sign -->\n"
)


def _as_sent(tool: str, arguments: Arguments, why: str) -> _Row:
    return tool, arguments, arguments, why


_LIKE_PLACEHOLDERS: tuple[_Row, ...] = (
    _as_sent(
        "filesystem__write_file",
        {"path": "/srv/templates/welcome.html", "content": _TEMPLATE},
        "a template is written: its placeholders are the content",
    ),
    _as_sent(
        "git__git_commit",
        {**SITE, "message": "Round totals once\n\nCo-authored-by: Ada Lovelace <ada@example.org>"},
        "a mail address in angle brackets",
    ),
    _as_sent(
        "filesystem__edit_file",
        {"path": "/srv/index.html", "edits": [{"oldText": "<body>", "newText": '<body class="dark">'}]},
        "HTML: a tag is replaced",
    ),
    _as_sent(
        "github__search_code",
        {"q": "Map<String> repo:octo/site language:java"},
        "a generic type is searched",
    ),
    _as_sent(
        "filesystem__search_files",
        {"path": "/srv/site", "pattern": "TODO"},
        "files called so are searched; many projects have one",
    ),
)

_READ: Arguments = {"id": "read", "tool": "filesystem__read_text_file", "arguments": {"path": "/srv/notes.md"}}
_FETCH: Arguments = {"id": "page", "tool": "fetch__fetch", "arguments": {"url": "https://example.org/"}}
_LIST: Arguments = {"id": "list", "tool": "github__list_issues", "arguments": {**REPO, "state": "open"}}
_PULLED: Arguments = {"id": "pr", "tool": "github__get_pull_request", "arguments": {**REPO, "pull_number": 7}}


def _post(text: str, **keys: Any) -> Arguments:
    return {"id": "post", "tool": "slack__slack_post_message", "arguments": {**CHANNEL, "text": text}, **keys}


def _steps(*steps: Arguments) -> Arguments:
    return {"steps": list(steps)}


def _posts(first: Arguments, sent: str, meant: str, why: str) -> _Row:
    return "execute_workflow", _steps(first, _post(sent)), _steps(first, _post(meant)), why


def _posts_when(earlier: tuple[Arguments, ...], sent: str, meant: str, why: str) -> _Row:
    said = "Look at octo/site."
    return (
        "execute_workflow",
        _steps(*earlier, _post(said, when=sent)),
        _steps(*earlier, _post(said, when=meant)),
        why,
    )


def _comments(for_each: str, number: str) -> Arguments:
    arguments = {**REPO, "issue_number": number, "body": "Seen again."}
    step = {"id": "said", "tool": "github__add_issue_comment", "for_each": for_each, "arguments": arguments}
    return {**step, "max_parallel": 1}


_COUNT: Arguments = {"id": "count", "transform": "length($list.issues)"}

_REFERENCES_DONE: tuple[_Row, ...] = (
    _posts(_READ, "read.content", "$read.content", "a step, and a field that it has: the dollar was forgotten"),
    _posts(_READ, "=read.content", "$read.content", "the sign of a formula before a step's field"),
    _posts(_FETCH, "ref:page", "$page", "a reference by its word; there is one step called so"),
    _posts({**_FETCH, "id": "E1"}, "#E1", "$E1", "a plan's way to name the result of a step that is called so"),
    _posts(_FETCH, "{{steps.page.output}}", "$page", "the whole output, which is a text"),
    _posts(
        _READ,
        "The notes: {{steps.read.output.content}}",
        "The notes: $read.content",
        "a field of the output in the middle of a text",
    ),
    _posts(_READ, "$.steps.read.content", "$read.content", "a path from a root that holds the steps"),
    (
        "execute_workflow",
        _steps(_LIST, _comments("list.issues", "item.number")),
        _steps(_LIST, _comments("$list.issues", "$item.number")),
        "a loop needs a list, and the step has one; a number is needed of each item",
    ),
    (
        "execute_workflow",
        _steps(_LIST, _comments("{{ list.issues }}", "{{ item.number }}")),
        _steps(_LIST, _comments("$list.issues", "$item.number")),
        "another system's marks around step and item",
    ),
    _posts_when((_LIST, _COUNT), "count * 2 > 3", "$count > 1.5", "arithmetic with a step's number; two issues"),
    _posts_when(
        (_PULLED,),
        "not $pr.merged and $pr.comments >= 3",
        "!($pr.merged) && $pr.comments >= 3",
        "Python's words for what the language has",
    ),
    _posts_when((_PULLED,), "pr.comments > 3", "$pr.comments > 3", "a step's field in a condition, without the dollar"),
    (
        "execute_workflow",
        _steps(_LIST, {"id": "n", "transform": "len($list.issues)"}),
        _steps(_LIST, {"id": "n", "transform": "length($list.issues)"}),
        "Python's word for the length",
    ),
    (
        "execute_workflow",
        _steps(_READ, _post("Fixed: read.content was empty, see #E1 and ref:12.")),
        _steps(_READ, _post("Fixed: read.content was empty, see #E1 and ref:12.")),
        "a sentence about such things: it is a text, and reaches the server as it is",
    ),
)


def _said(text: str) -> Arguments:
    return {"name": "slack__slack_post_message", "arguments": {**CHANNEL, "text": text}}


_README: Arguments = {"id": "readme", "tool": "filesystem__read_text_file", "arguments": {"path": "/srv/README.md"}}
_ISSUE: Arguments = {"id": "issue", "tool": "github__get_issue", "arguments": {**REPO, "issue_number": 11}}

_REFERENCES_REFUSED: tuple[_Row, ...] = (
    (
        "execute_workflow",
        _steps(_READ, _FETCH, _post("#E1")),
        _steps(_READ, _FETCH, _post("$read.content")),
        "no step is called so, and it counts from nought or from one",
    ),
    (
        "execute_workflow",
        _steps(_READ, _README, _post("{{previous.content}}")),
        _steps(_READ, _README, _post("$readme.content")),
        "two steps run before, at the same time",
    ),
    (
        "execute_workflow",
        _steps(_READ, _README, _post("$file.content")),
        _steps(_READ, _README, _post("$read.content")),
        "no step is called so, and two have a content",
    ),
    _posts(_READ, "$read.title", "$read.content", "the step's result has no such field"),
    _posts_when(
        (_PULLED, _ISSUE),
        "comments * 2 > 6",
        "$pr.comments > 3",
        "both steps have comments",
    ),
    (
        "call_batch",
        {"calls": [_said("$read.content"), _said("{{read.content}}")]},
        {"calls": [_said("Notes."), _said("Notes.")]},
        "calls of a batch see no results, and there is no such call",
    ),
)


_TEXT = {"type": "string"}
_NUMBER = {"type": "integer"}
_TEXTS = {"type": "array", "items": _TEXT}


def _object(*required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


_CLOUD: dict[str, dict[str, Any]] = {
    "digitalocean::volume_create": _object(
        "name",
        "region",
        "size_gigabytes",
        name=_TEXT,
        region=_TEXT,
        size_gigabytes=_NUMBER,
        description=_TEXT,
        filesystem_type={"type": "string", "enum": ["ext4", "xfs"]},
        tags=_TEXTS,
    ),
    "digitalocean::domain_record_create": _object(
        "domain",
        "type",
        "name",
        "data",
        domain=_TEXT,
        type={"type": "string", "enum": ["A", "AAAA", "CAA", "CNAME", "MX", "NS", "SRV", "TXT"]},
        name=_TEXT,
        data=_TEXT,
        priority=_NUMBER,
        port=_NUMBER,
        ttl=_NUMBER,
        weight=_NUMBER,
    ),
    "digitalocean::droplet_delete": _object("droplet_id", droplet_id=_NUMBER),
}
"""Parameters of tools whose descriptions are listed without any, as the vendor's API has them."""


def _fields(**properties: Any) -> dict[str, Any]:
    return {**_object(*properties, **properties), "additionalProperties": False}


_ISSUE_FIELDS = _fields(number=_NUMBER, title=_TEXT, state=_TEXT, comments=_NUMBER)
_RESULTS = {
    "filesystem::read_text_file": _fields(content=_TEXT),
    "github::list_issues": _fields(issues={"type": "array", "items": _ISSUE_FIELDS}, total=_NUMBER),
    "github::get_issue": _ISSUE_FIELDS,
    "github::get_pull_request": _fields(number=_NUMBER, title=_TEXT, merged={"type": "boolean"}, comments=_NUMBER),
}
"""The fields of the results that are referred to."""


def servers() -> dict[str, ScriptedServer]:
    """The servers of the tools that are meant, with these tools only; they remember what reached them."""
    meant = {name for call in written() for name in _named(call.meant)}
    tools: dict[str, list[Definition]] = {}
    for name in ("servers", "cloud"):
        for line in (_LISTED / name / "tools.jsonl").read_text().splitlines():
            listed = json.loads(line)
            if f"{listed['server']}__{listed['name']}" in meant:
                tools.setdefault(listed["server"], []).append(_definition(listed))
    return {name: ScriptedServer(tools=listed, handler=_answer) for name, listed in tools.items()}


def _definition(listed: dict[str, Any]) -> Definition:
    output = _RESULTS.get(listed["id"])
    return {
        "name": listed["name"],
        "description": listed["description"],
        "inputSchema": listed.get("input_schema") or _CLOUD[listed["id"]],
        **({"outputSchema": output} if output else {}),
    }


def _named(meant: Any) -> Iterator[str]:
    if isinstance(meant, dict):
        yield from (meant[key] for key in ("name", "tool") if isinstance(meant.get(key), str))
    for member in meant.get("steps") or meant.get("calls") or ():
        yield from _named(member)


async def _answer(_: Any, call: dict[str, Any]) -> dict[str, Any]:
    given = call["arguments"]
    match call["name"]:
        case "read_text_file":
            return _data({"content": f"the text of {given.get('path')}"})
        case "list_issues":
            return _data({"issues": list(_ISSUES), "total": len(_ISSUES)})
        case "get_issue":
            return _data(_ISSUES[0])
        case "get_pull_request":
            return _data(_PULL)
        case name:
            return text_result(f"{name} done with {json.dumps(given, sort_keys=True)}")


def _data(data: dict[str, Any]) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": json.dumps(data)}], "structuredContent": data}
