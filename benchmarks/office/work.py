"""The issue tracker and the git hosting."""

from __future__ import annotations

from typing import Any

from benchmarks.office.system import (
    NOW,
    Arguments,
    Office,
    RefusedError,
    System,
    creating,
    custom,
    many,
    reading,
    removing,
    searching,
    setting,
    text,
    updating,
    whole,
)
from pml_gateway.types import Effect

_STATE = ("backlog", "todo", "in_progress", "in_review", "done", "wont_do")
_PRIORITY = ("low", "medium", "high", "critical")


def _comment(table: str, prefix: str, of: str, key: str) -> Any:
    def comment(office: Office, given: Arguments) -> Any:
        office.record(of, given[key])
        return office.add(table, prefix, {"author": "mara.lindqvist", "date": NOW, **given})

    return comment


def _link(office: Office, given: Arguments) -> Any:
    for key in ("issue_id", "other_id"):
        office.record("tracker.issues", given[key])
    return office.add("tracker.links", "LN", dict(given))


_ISSUE = {
    "title": text("the title"),
    "description": text("what is to be done"),
    "priority": text("the priority", *_PRIORITY),
    "assignee": text("a colleague's handle, as firstname.lastname"),
    "labels": many("labels; they replace those that it has"),
    "sprint_id": text("the sprint's id"),
    "points": whole("the estimate"),
}

TRACKER = System(
    "tracker",
    "Issues of the development teams. Projects: FW (firmware), WEB (customer portal), CAL (calibration software).",
    (
        searching(
            "search_issues",
            "Find issues.",
            "tracker.issues",
            "title description",
            "project title state priority assignee labels sprint_id points",
            project=text("the project", "FW", "WEB", "CAL"),
            state=text("how far", *_STATE),
            assignee=text("a handle, or `none`"),
            priority=text("the priority", *_PRIORITY),
            labels=text("only with this label"),
            sprint_id=text("only in this sprint"),
        ),
        reading(
            "get_issue",
            "Show an issue with its comments and links.",
            "tracker.issues",
            "issue_id",
            comments=("tracker.comments", "issue_id"),
            links=("tracker.links", "issue_id"),
        ),
        creating(
            "create_issue",
            "Open an issue.",
            "tracker.issues",
            "ISS",
            "project title",
            defaults={
                "state": "backlog",
                "priority": "medium",
                "assignee": "none",
                "labels": [],
                "sprint_id": "",
                "points": 0,
                "description": "",
            },
            links={"sprint_id": "tracker.sprints"},
            project=text("the project", "FW", "WEB", "CAL"),
            **_ISSUE,
        ),
        updating(
            "update_issue",
            "Change fields of an issue, but its state.",
            "tracker.issues",
            "issue_id",
            links={"sprint_id": "tracker.sprints"},
            **_ISSUE,
        ),
        updating(
            "transition_issue",
            "Set how far an issue is.",
            "tracker.issues",
            "issue_id",
            state=text("the new state", *_STATE),
        ),
        custom(
            "comment_on_issue",
            "Comment on an issue.",
            Effect.WRITE,
            _comment("tracker.comments", "IC", "tracker.issues", "issue_id"),
            "issue_id text",
            issue_id=text("the id"),
            text=text("the comment"),
        ),
        custom(
            "link_issues",
            "Link two issues.",
            Effect.WRITE,
            _link,
            "issue_id other_id kind",
            issue_id=text("the first issue"),
            other_id=text("the second issue"),
            kind=text("what the first does to the second", "blocks", "duplicates", "relates_to"),
        ),
        removing("delete_issue", "Delete an issue for good.", "tracker.issues", "issue_id"),
        searching(
            "list_sprints", "List sprints.", "tracker.sprints", "name", state=text("", "past", "active", "future")
        ),
        searching(
            "list_comments", "List comments on issues.", "tracker.comments", "text", issue_id=text("only on this issue")
        ),
    ),
)


def _merge(office: Office, given: Arguments) -> Any:
    pull = office.record("forge.pulls", given["pull_id"])
    if pull["state"] != "open" or pull["checks"] != "passed" or not pull["approvals"]:
        approved = "approved" if pull["approvals"] else "not approved"
        raise RefusedError(
            f"{pull['id']} cannot be merged: it is {pull['state']}, {approved}, its checks {pull['checks']}"
        )
    pull.update({"state": "merged", "method": given.get("method", "merge")})
    return dict(pull)


def _approve(office: Office, given: Arguments) -> Any:
    pull = office.record("forge.pulls", given["pull_id"])
    if pull["state"] != "open":
        raise RefusedError(f"{pull['id']} is {pull['state']}")
    pull["approvals"] = [*pull["approvals"], "mara.lindqvist"]
    return dict(pull)


def _delete_branch(office: Office, given: Arguments) -> Any:
    for branch in office.rows("forge.branches"):
        if (branch["repository"], branch["name"]) == (given["repository"], given["branch"]):
            if branch["protected"]:
                raise RefusedError(f"{branch['name']} is protected")
            del office.tables["forge.branches"][branch["id"]]
            return {"deleted": branch["name"]}
    raise RefusedError(f"{given['repository']} has no branch {given['branch']!r}")


def _branch(office: Office, given: Arguments) -> Any:
    names = {(each["repository"], each["name"]) for each in office.rows("forge.branches")}
    if (given["repository"], given["from_branch"]) not in names:
        raise RefusedError(f"{given['repository']} has no branch {given['from_branch']!r}")
    if (given["repository"], given["branch"]) in names:
        raise RefusedError(f"{given['repository']} has a branch {given['branch']!r} already")
    new = {"repository": given["repository"], "name": given["branch"], "protected": False, "merged": False}
    return office.add("forge.branches", "BR", {**new, "last_commit": NOW[:10]})


_REPOSITORY = text("the repository's name")

FORGE = System(
    "forge",
    "The git hosting of Larkfield Instruments: repositories, branches, pull requests, releases and pipeline runs.",
    (
        searching("list_repositories", "List repositories.", "forge.repositories", "name description"),
        searching(
            "list_pulls",
            "List pull requests.",
            "forge.pulls",
            "title branch",
            "repository title author state checks approvals branch",
            repository=_REPOSITORY,
            state=text("the state", "open", "merged", "closed"),
            author=text("a handle"),
            checks=text("the result of the checks", "passed", "failed", "running"),
        ),
        reading(
            "get_pull",
            "Show a pull request with its comments.",
            "forge.pulls",
            "pull_id",
            comments=("forge.comments", "pull_id"),
        ),
        custom("approve_pull", "Approve a pull request.", Effect.WRITE, _approve, "pull_id", pull_id=text("the id")),
        custom(
            "comment_on_pull",
            "Comment on a pull request.",
            Effect.WRITE,
            _comment("forge.comments", "PC", "forge.pulls", "pull_id"),
            "pull_id text",
            pull_id=text("the id"),
            text=text("the comment"),
        ),
        custom(
            "merge_pull",
            "Merge a pull request whose checks have passed and that somebody has approved.",
            Effect.WRITE,
            _merge,
            "pull_id",
            pull_id=text("the id"),
            method=text("how (default merge)", "merge", "squash", "rebase"),
        ),
        setting(
            "close_pull",
            "Close a pull request without merging it.",
            "forge.pulls",
            "pull_id",
            {"state": "closed"},
            only={"state": ["open"]},
        ),
        searching(
            "list_branches",
            "List branches; `merged` says that the default branch has all of their commits.",
            "forge.branches",
            "name",
            repository=_REPOSITORY,
        ),
        custom(
            "create_branch",
            "Create a branch.",
            Effect.WRITE,
            _branch,
            "repository branch from_branch",
            repository=_REPOSITORY,
            branch=text("the new branch"),
            from_branch=text("where it begins"),
        ),
        custom(
            "delete_branch",
            "Delete a branch with the commits that only it has.",
            Effect.DESTRUCTIVE,
            _delete_branch,
            "repository branch",
            repository=_REPOSITORY,
            branch=text("the branch"),
        ),
        searching("list_releases", "List releases.", "forge.releases", "version notes", repository=_REPOSITORY),
        creating(
            "create_release",
            "Publish a release.",
            "forge.releases",
            "REL",
            "repository version notes",
            defaults={"date": NOW[:10], "prerelease": False},
            repository=_REPOSITORY,
            version=text("the version, as 1.2.3"),
            notes=text("what is new"),
        ),
        searching(
            "list_runs",
            "List pipeline runs.",
            "forge.runs",
            "name",
            repository=_REPOSITORY,
            status=text("the result", "passed", "failed", "running"),
        ),
        setting(
            "rerun_pipeline",
            "Start a failed pipeline run again.",
            "forge.runs",
            "run_id",
            {"status": "running"},
            only={"status": ["failed"]},
        ),
    ),
)
SYSTEMS = (TRACKER, FORGE)
