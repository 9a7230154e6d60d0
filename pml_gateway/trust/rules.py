"""The rules: orders, secrecy and exfiltration as sequences of kinds of words, each with the class it stands for."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from pml_gateway.secrets.judgement import KNOWN_CREDENTIAL, RANDOM
from pml_gateway.trust.lexicon import Kind, Reading
from pml_gateway.trust.verdict import RiskClass

_GAP = re.compile(r"~(\d+)")


RULE_BONUS = 3.5
"""Logits that a rule adds: enough for most, and not against words that only describe an order."""

FACT_BONUS = 6.0
"""The same of rules that guess little: that a name is another server's tool's is known."""

R = RiskClass
E = "EXAMPLE"

_STARTING: defaultdict[str, list[int]] = defaultdict(list)
"""The rules that begin with a letter: most texts have few letters, so that few rules are tried."""

_PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z ]{0,20}PRIVATE KEY-----\s{0,8}[A-Za-z0-9+/=\s\\]{16,}")

_ASSIGNED = re.compile(
    r"(?:api[_-]?key|token|secret|passw(?:or)?d|pwd|access[_-]?key|bearer)[\"']?(?:\s?[:=]\s?|\s)[\"'`]?([A-Za-z0-9_+/.=!@#$%^&*-]{16,200})",
    re.IGNORECASE,
)

_LOGIN = re.compile(r"\b[a-z][a-z0-9+]{2,20}://[^\s:/@]{1,64}:([^\s:/@]{6,100})@[\w.-]{1,100}", re.IGNORECASE)

_PLACEHOLDER = re.compile(
    r"your|example|sample|placeholder|xxx|\*\*\*|\.\.\.|<|\{|\$|dummy|fake|change|insert|redacted|(?:passw(?:or)?d|secret|token|user|pass|mypass|test)\d{0,4}$|^(.)\1+$",
    re.IGNORECASE,
)

MIN_DISTINCT = 9
"""Minimum number of different characters in a real key; fewer are a typed pattern."""

MIN_KEY = 20
JWT_DOTS = 2
MIN_MIXED = 6


@dataclass(frozen=True, slots=True)
class Rule:
    """A sequence of kinds within one sentence.

    In `pattern`, kinds stand in upper case, `|` between alternatives, `~3` for up to three words between. `unless`
    names kinds that excuse it earlier in the sentence: who explains or detects an order does not give it.
    """

    name: str
    risk_class: RiskClass
    pattern: str
    unless: str = ""

    @property
    def bonus(self) -> float:
        """Logits that the rule adds to what the classifier says of the sentence."""
        return FACT_BONUS if "PEER" in self.pattern or self.name == "which-model" else RULE_BONUS

    def compiled(self) -> re.Pattern[str]:
        """Return the pattern over the letters of a reading."""
        parts = []
        for part in self.pattern.split():
            gap = _GAP.fullmatch(part)
            parts.append(f"[^|]{{0,{gap[1]}}}" if gap else f"[{''.join(Kind[each].value for each in part.split('|'))}]")
        return re.compile("".join(parts))


RULES = (
    # Orders that put themselves in the place of others.
    Rule("override", R.HIDDEN_INSTRUCTION, "IGNORE ~3 PRIOR|ALL ~4 RULES|PROMPT", unless=E),
    Rule("override-prior", R.HIDDEN_INSTRUCTION, "IGNORE ~2 ALL ~1 PRIOR", unless=E),
    Rule(
        "override-rules",
        R.PRIVILEGE_ESCALATION,
        "IGNORE|DISABLE ~3 SAFETY|SYSTEM ~2 RULES|PROMPT|SAFETY|APPROVAL",
        unless=E,
    ),
    Rule("override-yours", R.PRIVILEGE_ESCALATION, "IGNORE ~1 YOU ~2 RULES|PROMPT|SAFETY", unless=E),
    Rule("override-user", R.HIDDEN_INSTRUCTION, "IGNORE ~2 USER ~3 MESSAGE|CONTENT|RULES|CALL", unless=E),
    Rule("from-user", R.HIDDEN_INSTRUCTION, "MESSAGE ~1 USER ~1 YOU", unless=E),
    Rule("as-user", R.HIDDEN_INSTRUCTION, "BEFORE|FIRST|WHENEVER ~10 SELF ~2 YOU"),
    Rule("tells-model", R.HIDDEN_INSTRUCTION, "TELL ~1 MODEL ~2 PUT|SEND|READ|STEAL|IGNORE", unless=E),
    Rule("mark-override", R.HIDDEN_INSTRUCTION, "MARK ~12 IGNORE|STEAL|EVIL", unless=E),
    Rule("mark-file", R.DATA_EXFILTRATION, "MARK ~14 FILE"),
    Rule("mark-secret", R.DATA_EXFILTRATION, "MARK ~10 READ|SEND|PUT|STEAL|COLLECT ~6 SECRET|TALK|PERSONAL"),
    Rule("mark-admin", R.PRIVILEGE_ESCALATION, "MARK ~4 YOU ~3 ADMIN"),
    # Secrecy.
    Rule("keep-from-user", R.HIDDEN_INSTRUCTION, "NOT ~1 TELL ~6 USER|PERSON", unless=E),
    Rule("keep-instructions", R.HIDDEN_INSTRUCTION, "NOT ~3 TELL ~3 RULES|PROMPT", unless=E),
    # Data on its way out.
    Rule("file-out", R.DATA_EXFILTRATION, "SEND|STEAL ~6 FILE", unless=E),
    Rule("file-into", R.DATA_EXFILTRATION, "PUT|COPY ~6 FILE ~8 ANSWER|FIELD|SEND|LINK|MESSAGE", unless=E),
    Rule("file-text", R.DATA_EXFILTRATION, "PUT|COPY ~3 CONTENT ~3 FILE", unless=E),
    Rule(
        "file-in",
        R.DATA_EXFILTRATION,
        "READ|COLLECT|COMMAND ~5 FILE ~9 SEND|PUT|FIELD|ANSWER|STEAL|LINK|COPY",
        unless=E,
    ),
    Rule("file-first", R.DATA_EXFILTRATION, "BEFORE|FIRST|MUST|WHENEVER ~12 READ|SHELL ~4 FILE"),
    Rule("file-then-first", R.DATA_EXFILTRATION, "READ ~3 FILE ~2 FIRST|BEFORE"),
    Rule("file-read", R.DATA_EXFILTRATION, "READ|SHELL|COLLECT ~4 FILE", unless=E),
    Rule(
        "steal",
        R.DATA_EXFILTRATION,
        "STEAL ~6 SECRET|FILE|CONTENT|PERSONAL|TALK|USER|MESSAGE|LINK|OUTSIDE|EVIL|ALL",
        unless=E,
    ),
    Rule(
        "secret-out", R.DATA_EXFILTRATION, "SEND|STEAL ~6 SECRET|TALK|PERSONAL ~8 OUTSIDE|LINK|ADDRESS|EVIL", unless=E
    ),
    Rule(
        "all-out",
        R.DATA_EXFILTRATION,
        "SEND|STEAL|COPY ~3 ALL|USER|YOU|MESSAGE ~4 CONTENT|MESSAGE|TALK ~6 OUTSIDE|LINK|ADDRESS|EVIL",
    ),
    Rule("to-attacker", R.DATA_EXFILTRATION, "SEND|PUT|COPY|SHELL|CHANGE ~8 EVIL", unless=E),
    Rule("secret-answered", R.DATA_EXFILTRATION, "MUST ~2 ANSWER ~3 SECRET|PROMPT", unless=E),
    Rule("always-copied", R.TOOL_SHADOWING, "MUST|WHENEVER ~8 COPY ~12 ADDRESS|EVIL"),
    Rule("redirected", R.TOOL_SHADOWING, "SEND|CHANGE ~3 ALL ~2 MESSAGE|SEND|MONEY ~4 ADDRESS|EVIL|LINK|OUTSIDE"),
    Rule("money-later", R.TOOL_SHADOWING, "WHENEVER ~10 CHANGE|INSTEAD ~2 MONEY"),
    # Other servers' tools.
    Rule("peer-order", R.TOOL_SHADOWING, "CALL|INSTEAD|BEFORE|WHENEVER|MUST|CHANGE ~4 PEER", unless=E),
    Rule("peer-changed", R.TOOL_SHADOWING, "PEER ~8 MUST|CHANGE|INSTEAD|COPY|PREFER|OUTDATED|SEND|IGNORE"),
    Rule("tool-addressed", R.TOOL_SHADOWING, "WHENEVER|BEFORE ~4 NAME|PEER ~10 ADDRESS|EVIL"),
    Rule("tool-replaced", R.CROSS_TOOL_MANIPULATION, "BEFORE ~4 CALL ~3 TOOL ~2 INSTEAD|CHANGE"),
    Rule("which-model", R.DATA_EXFILTRATION, "WHICH_MODEL"),
    Rule("tool-command", R.CROSS_TOOL_MANIPULATION, "CALL|WHENEVER ~4 NAME|COMMAND ~6 SHELL|FILE", unless=E),
    # This one before all others.
    Rule(
        "prefer-this",
        R.PREFERENCE_MANIPULATION,
        "PREFER|CALL|MUST ~5 TOOL ~5 INSTEAD|BEFORE ~2 ALL|OTHER",
        unless=E,
    ),
    Rule("best-tool", R.PREFERENCE_MANIPULATION, "PRAISE TOOL", unless=E),
    Rule("always-this", R.PREFERENCE_MANIPULATION, "MUST ~2 CALL|PREFER ~2 TOOL ~1 INSTEAD"),
    Rule("must-always", R.PREFERENCE_MANIPULATION, "MUST ~1 MUST ~1 CALL ~1 TOOL"),
    Rule("others-outdated", R.PREFERENCE_MANIPULATION, "OTHER ~2 TOOL ~4 OUTDATED"),
    Rule("others-not", R.PREFERENCE_MANIPULATION, "NOT ~1 CALL|PREFER ~2 OTHER ~1 TOOL"),
    Rule("others-must-not", R.PREFERENCE_MANIPULATION, "OTHER ~2 TOOL ~3 MUST|NOT ~2 NOT|CALL", unless=E),
    Rule(
        "before-others",
        R.PREFERENCE_MANIPULATION,
        "CALL|PREFER ~5 BEFORE|INSTEAD ~2 ALL ~2 OTHER|TOOL|MESSAGE",
        unless=E,
    ),
    # Credentials.
    Rule("ask-secret", R.CREDENTIAL_REQUEST, "ASK|PROMPT ~2 USER|PERSON ~8 SECRET|PERSONAL", unless=E),
    Rule("give-me", R.CREDENTIAL_REQUEST, "USER ~4 YOU ~3 SECRET|PERSONAL", unless=E),
    Rule("needs-secret", R.CREDENTIAL_REQUEST, "MUST ~3 USER ~3 SECRET|PERSONAL", unless=E),
    # Consent and rights.
    Rule(
        "approval-off",
        R.PRIVILEGE_ESCALATION,
        "DISABLE|IGNORE ~3 APPROVAL|SAFETY ~8 SESSION|MODEL",
        unless=E,
    ),
    # Commands.
    Rule("shell-out", R.DATA_EXFILTRATION, "SHELL ~6 LINK|EVIL|FILE", unless=E),
    # Later.
)

_COMPILED = tuple((rule, rule.compiled()) for rule in RULES)
for _number, _rule in enumerate(RULES):
    for _kind in _rule.pattern.split()[0].split("|"):
        _STARTING[Kind[_kind].value].append(_number)
_EXCUSES = {
    rule.name: re.compile(f"[{''.join(Kind[each].value for each in rule.unless.split('|'))}]")
    for rule in RULES
    if rule.unless
}


@dataclass(frozen=True, slots=True)
class RuleMatch:
    """A rule that fits, and its first and last (exclusive) token."""

    rule: Rule
    start: int
    end: int
    is_excused: bool = False
    """True if the sentence explains, detects or denies what it names; such a match is not a finding."""


def matches(reading: Reading) -> Iterator[RuleMatch]:
    """Each rule where it fits first, and where it fits only excused."""
    letters = reading.letters
    for number in sorted({number for letter in set(letters) for number in _STARTING.get(letter, ())}):
        rule, pattern = _COMPILED[number]
        excused: RuleMatch | None = None
        for found in pattern.finditer(letters):
            if not _is_excused(rule, letters, found.start()):
                yield RuleMatch(rule, found.start(), found.end())
                break
            excused = excused or RuleMatch(rule, found.start(), found.end(), is_excused=True)
        else:
            if excused is not None:
                yield excused


def _is_excused(rule: Rule, letters: str, start: int) -> bool:
    excuse = _EXCUSES.get(rule.name)
    if excuse is not None and excuse.search(letters, letters.rfind("|", 0, start) + 1, start):
        return True
    return rule.risk_class is RiskClass.DATA_EXFILTRATION and _is_denied(letters, start)


def _is_denied(letters: str, start: int) -> bool:
    """Return True if "does not", "never" or "without" directly precedes the match."""
    return Kind.NOT.value in letters[max(0, start - 2) : start] and letters[start] != Kind.NOT.value


def secrets_in(text: str) -> Iterator[str]:
    """Credentials that stand in a text as they are; placeholders are none."""
    for found in _PRIVATE_KEY.finditer(text):
        yield found[0]
    for found in KNOWN_CREDENTIAL.finditer(text):
        is_token = not found[0].startswith("eyJ") or found[0].count(".") == JWT_DOTS
        if is_token and len(found[0]) >= MIN_KEY and _is_random(found[0]):
            yield found[0]
    for pattern in (_ASSIGNED, _LOGIN):
        for found in pattern.finditer(text):
            if pattern is _LOGIN:
                is_real = _is_mixed(found[1])
            else:
                is_real = _is_random(found[1]) and RANDOM.search(found[1]) is not None
            if is_real:
                yield found[1]


def _is_mixed(password: str) -> bool:
    """Return True if the password in a URL is more than a word."""
    kinds = (any(map(test, password)) for test in (str.isdigit, str.isupper, str.islower))
    return sum(kinds) > 1 and len(set(password)) >= MIN_MIXED and not _PLACEHOLDER.search(password)


def _is_random(value: str) -> bool:
    body = value.strip("=.-_")
    return (
        len(set(body)) >= MIN_DISTINCT
        and any(character.isdigit() for character in body)
        and not _PLACEHOLDER.search(value)
        and "://" not in value
    )
