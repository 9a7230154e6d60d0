"""Wording: requests in other words than those of tools, and words that no tool knows.

`where is parse_config used` is answered by a search in the texts of files, `what was the date 90 days ago` by adding
days to a date. Each idiom adds the words of such tools' descriptions; the words of the question still count.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pml_gateway.index.text import UNSPACED, query_tokens
from pml_gateway.index.verbs import leads, telling_words

MAX_UNKNOWN = 4
"""Maximum number of unknown words in an answer."""

MAX_REQUEST_WORDS = 10
"""Maximum words of a request that is checked: in longer ones, a system is often just the source of the data, and the
object of the verb is hard to find. Without a limit, one in twenty requests of `seal_tools` counts as unknown although
a tool serves it."""

UNKNOWN_SHARE = 0.5
"""Share of a score that is left if a word of the request is unknown. If the right tool is missing, the best one often
reaches .9, as near ones stand out; half of that is below all thresholds of lists, and above that of answers."""

_AFTER_OBJECT_TEXT = """
about after and as at before between by called containing for from if in into like named of on onto or over so that
then through to under until using via when where which while who with within without is are was were be been has have
had will would can could should
"""
AFTER_OBJECT = frozenset(_AFTER_OBJECT_TEXT.split())
_SYSTEM_TEXT = """
airtable algolia amplitude asana atlassian auth0 aws azure basecamp bigquery bitbucket bitwarden calendly canva
circleci clickhouse clickup cloudflare cloudinary cloudwatch codeberg confluence contentful couchbase databricks
datadog digitalocean discord docker docusign dropbox duckduckgo dynamodb ebay elasticsearch elevenlabs etsy evernote
facebook figma firebase firestore freshdesk gitea github gitlab gmail grafana hasura heroku hubspot huggingface
instagram jenkins jira jotform kafka keycloak klaviyo kubernetes launchdarkly lastpass linkedin magento mailchimp
mailgun mastodon mattermost metabase mixpanel mongodb mysql neo4j netlify notion obsidian okta onedrive openai
opsgenie outlook pagerduty paypal pinecone pinterest pipedrive plaid postgres postgresql postman posthog prometheus
qdrant quickbooks rabbitmq reddit redis salesforce sendgrid sentry servicenow sharepoint shopify slack smartsheet
snowflake sonarqube spotify sqlite squarespace stackoverflow stripe strava supabase telegram terraform tiktok todoist
trello tumblr twilio twitch twitter typeform vercel vimeo webex webflow whatsapp wikipedia wordpress xero youtube
zapier zendesk
"""
"""Names of systems that tools exist for. A request that names one is about it, wherever the name appears."""

_SYSTEMS = frozenset(_SYSTEM_TEXT.split())

_VALUE = re.compile(r"\"[^\"]*\"|'[^']*'(?!\w)|`[^`]*`|«[^»]*»|“[^”]*”|\S+://\S+|\S+@\S+|\S*[\w-]\.[a-zA-Z]\S*")
"""Values, which do not name the subject of a tool: quoted texts, URLs, addresses, files."""

_WORD = re.compile(r"(?<![\w/#.-])\w+(?![\w/#-])")
"""A separate word; `slack-bot` is not one, as it names a branch or a file."""

_QUESTION = r"\A\W*(?:(?:please|so|and|hey|tell me|find(?: out)?|show(?: me)?|list|can you tell me)\s+)*"

_IDENTIFIER = r"(?:[A-Za-z]+_\w+|_\w+|[a-z]+[A-Z]\w*|(?:[A-Z][a-z0-9]+){2,}|\w+\(\))"
"""An identifier in code: `parse_config`, `handleClick`, `UserService`, `main()`."""

_KIND = "(?:function|class|method|variable|constant|macro|symbol)"

_USED = (
    r"(?:used|called|defined|declared|imported|referenced|invoked|implemented|mentioned|set|uses?|usages?|calls?"
    r"|callers?|defines?|declares?|imports?|references?|occurs?|occurrences?|appears?)"
)

_NUMBER = (
    r"(?:\d+|an?|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|a few|a couple of|several|half an)"
)

_UNIT = r"(?:second|minute|hour|day|week|fortnight|month|year)s?"
_SPAN = rf"{_NUMBER}(?:\s+more)?\s+{_UNIT}"
_FILES = r"(?:files?|documents?|reports?|pages?|texts?|modules?|sources?|scripts?)"
_SAYS = r"(?:mention|contain|include|say|talk about|refer to|quote)s?"


def unknown_words(request: str, known: Callable[[str], bool], near: Callable[[Sequence[str]], bool]) -> tuple[str, ...]:
    """Return the subject words of a request that no tool knows: a system, or the object of its verb.

    Args:
        request: the text of the request.
        known: returns True if a tool has this word.
        near: returns True if a tool is near to one of these words by its meaning.
    """
    text = _VALUE.sub(" ", request)
    words = _WORD.findall(text.casefold())
    if len(words) > MAX_REQUEST_WORDS:
        return ()
    found = [word for word in words if word in _SYSTEMS and not known(word)]
    phrase = list(_object(text))
    if phrase and not any(map(known, phrase)) and (set(phrase) & set(found) or not near(phrase)):
        found += phrase
    return tuple(dict.fromkeys(found))[:MAX_UNKNOWN]


def _object(request: str) -> Iterator[str]:
    """Yield the words of the object of a request's verb, without stop words."""
    if not leads(request):
        return
    told = telling_words(request)
    next(told)
    for word in told:
        if word in AFTER_OBJECT or UNSPACED.search(word):
            return
        if query_tokens(word) and word.isalpha():
            yield word


@dataclass(frozen=True, slots=True)
class Idiom:
    """A way to ask: the pattern that recognises it, and the words that tools use for it."""

    asked: re.Pattern[str]
    means: str
    drops: re.Pattern[str] | None = None
    """Words that only name a value, and whose parts would match unrelated tools."""


IDIOMS = (
    Idiom(
        re.compile(
            rf"{_QUESTION}(?:(?:where|which|what|who|all|every|the)\b.*\b{_USED}\b"
            r"|(?:usages?|uses|references?|callers?|calls)\s+(?:of|to)\b)"
        ),
        "search the text of files",
        drops=re.compile(rf"(?<![\w.])(?:{_KIND}\s+\w+|{_IDENTIFIER})(?![\w.])"),
    ),
    Idiom(
        re.compile(
            rf"{_QUESTION}(?:(?:in )?(?:which|what)\b(?:\s+\w+){{0,3}}?|any|do any(?: of \w+)?|does any|is there a)"
            rf"\s*{_FILES}\b.*(?:\b{_SAYS}\b|\bthe (?:word|phrase|string|term|text)\b)|"
            rf"{_QUESTION}(?:is|does) the (?:word|phrase|string|term|text)\b.*\b{_FILES}\b",
            re.IGNORECASE,
        ),
        "search the text of files",
    ),
    Idiom(
        re.compile(
            rf"{_QUESTION}(?:what|which|when)\b(?:(?!\buntil\b|\bbetween\b|\bbusiness\b|\bworking\b).)*?"
            rf"(?:\b{_SPAN}\s+(?:from|ago|later|earlier|before|after|hence|back)\b|\bin\s+{_SPAN}\W*\Z)",
            re.IGNORECASE,
        ),
        "add a duration to a date",
    ),
    Idiom(
        re.compile(
            rf"{_QUESTION}(?:how (?:long|many {_UNIT}|much time)\b.*\b(?:until|till|til|before|since|to go|left)\b"
            r"|(?:count ?down|time (?:left|remaining)|days (?:left|remaining))\b|how (?:soon|long ago) (?:is|was)\b)",
            re.IGNORECASE,
        ),
        "the current date and time, and the days between two dates",
    ),
    Idiom(
        re.compile(
            r"\A\W*(?:please\s+)?(?:tell|inform|notify|let)\s+(?!me\b|us\b)(?:\S+\s+){1,3}?"
            r"(?:know|that|about|when|the|we|i|it|is|our|my)\b",
            re.IGNORECASE,
        ),
        "send a message",
    ),
    Idiom(
        re.compile(
            r"\A\W*(?:please\s+)?(?:remember|memori[sz]e|keep in mind)\s+(?:that\s+)?(?:my|our|i|i['’]m|we)\b",
            re.IGNORECASE,
        ),
        "add a fact to what is remembered",
    ),
    Idiom(
        re.compile(
            rf"{_QUESTION}(?:what (?:do|did|have) (?:you|we|i)|do you|did i|have i|can you)\s+(?:\w+\s+)?"
            r"(?:know|remember|recall|told|tell you|say|said|noted?)\b(?!\s+of\b).*"
            r"\b(?:about|of|that|what|who|when|where)\b",
            re.IGNORECASE,
        ),
        "search what is remembered",
    ),
)


def in_words_of_answers(request: str) -> str:
    """Return a request with tools' words for it added, if it is one of the idioms."""
    for idiom in IDIOMS:
        if idiom.asked.search(request) is None:
            continue
        if idiom.drops is None:
            return f"{idiom.means}: {request}"
        rest, values = idiom.drops.subn("a name", request)
        if values:
            return f"{idiom.means}: {rest}"
    return request
