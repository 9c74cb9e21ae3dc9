r"""Answers in prose: labels, conclusions, the number of a sentence, and whether a text stands by what it states.

A heuristic, for texts that keep to no form; ``answer_reward`` gives its measured rates.  The same rules tell whether
the words around a box, a line or a tag deny it, suppose it, ascribe it to another or take it back.

It does not judge what is stated: ``rewards.quantities`` reads a number and ``rewards.answers`` compares it with the
gold answer.  It knows nothing of thoughts: it gets the text after one.
"""

from __future__ import annotations

import re

from rewards.forms import BOX, MOST, SPAN, Statement, statement
from rewards.quantities import Number, signed, to_number

# ----------------------------------------------------------------------- where prose states an answer

# Every repeat is bounded: a completion may be a hundred thousand line feeds.
_NOUNS = (
    r"(?:\b(?:answer|result|respuesta|resultado|resposta|antwort|ergebnis|lösung|réponse|résultat|risposta|"
    r"risultato|antwoord|ответ|результат|відповідь|odpowiedź|wynik|cevap|svar|उत्तर|الجواب|الإجابة|جواب)"
    r"|答案|结果|答え|正解|정답|답)"
)
_LABEL = re.compile(
    rf"(?:{_NOUNS}|\bsolution)\s{{0,9}}(?:\([^)\n]{{0,40}}\))?\W{{0,4}}?"
    r"(?:\b(?:is|are|was|were|equals?|equal to|(?:must|will|should) be|comes to|es|ist|est|é|è|lautet|jest|هو|هي)\b"
    r"|[:：=是为為は은는])\s{0,9}[:：]?"
    rf"|^[#*_ ]{{0,9}}(?:final\s{{1,9}})?{_NOUNS}[*_ ]{{0,9}}(?=\n)"
    r"|\b(?:final|correct|right|my) (?:choice|option|letter) is\b|उत्तर\s{1,9}",
    re.IGNORECASE | re.MULTILINE,
)
_BARE = 4000  # characters of a text without a label
_LONG = 1000  # characters of a statement
# A full stop between digits is a decimal point; one after white space or a lone digit numbers a list.
_SENTENCE = re.compile(
    r"(?<=[.!?。！？।؟])(?<!e\.g\.)(?<!i\.e\.)(?!(?<=\d!)\s+[-a-z*+=\\/])(?=\s|$|[^\s\d.,)\]}*$`\"'”’<!?])"
    r"|(?<=[.!?。！？।؟][*)\"'”’$])(?=\s|$)|\n+"
)
# What follows a value without being a part of it: a reason, a tag, or the copula where a language puts it last.
_REASON = re.compile(
    r"[,;]?\s*\b(?:because|given that|as required|as (?:we|you) can|since (?=.*\d)|that is, (?=[a-z]))\b.*"
    r"|</?(?:answer|think)>.*|\s*(?:です|である|है|हैं|입니다|이다)(?=\W*$)",
    re.DOTALL,
)
# "42, not 43" and "42 rather than 43" state 42.
_CONTRAST = re.compile(
    r"(?<=[\w)}$*%])[,;]?\s+(?:and |but )?(?:not|rather than|instead of|as opposed to|unlike)\b(?! \w+ (?:is|are)\b)"
    r"(?:(?!\bbut\b)[^.;:,]|\.(?=\d))*(?:, (?:as|since|because|which)\b.*|: [^\d]*)?$",
    re.IGNORECASE | re.DOTALL,
)
_LIST_MARK = re.compile(r"^\s*(?:\d{1,3}[.)]|[-*•])\s+(?=\S)")
_CHECK = re.compile(
    r"^\s*\((?=.*[a-z]{2})(?:[^()]|\([^()]*\))*\)\W*$|^\W*(?:check|verif|proof|to (?:check|verify)|note|hint|"
    r"source|step \d|let me (?:check|verify)|try(?:ing)? |don['’]t|remember|if you)",
    re.IGNORECASE,
)


def labelled(text: str) -> list[Statement]:
    """What follows "the answer is", "Answer:" and their like in some other languages; boxes apart."""
    matches, found = list(_LABEL.finditer(text)), []
    ends = [*(match.start() for match in matches[1:]), len(text)]
    for match, end in zip(matches, ends, strict=False):
        ahead = text[match.end() : min(end, match.end() + SPAN)]
        ahead = re.sub(r"^[*_ ]*\n" + _LIST_MARK.pattern[1:], "\n", ahead)
        span = next((part for part in sentences(ahead) if part.strip(" \n*:.$\\[(")), "")
        value = _REASON.sub("", span).strip("*_! ")
        if value and not BOX.search(span):  # a box is a statement of its own
            end = match.end() + ahead.find(span) + len(span)
            found.append(statement(text, value, match.start(), end, "label"))
    return found[: MOST + 1]


def sentences(text: str) -> list[str]:
    """The sentences of a text; a line is one at least."""
    return [part for part in _SENTENCE.split(text) if part.strip()]


def concluded(text: str, kind: str = "number") -> list[Statement]:
    """The last sentence of a text that may state an answer; what follows it may take that back.

    A table's last cell and a list's last entry are sentences.  Checks and remarks in brackets are passed over.
    """
    parts = sentences(text)
    if not parts or len(text) > _BARE:
        return []
    sign = re.compile({"choice": r"\b[A-J]\b", "exact": r"\w"}.get(kind, r"\d|[=$\\]"))
    stating = (i for i, part in enumerate(parts) if sign.search(part) and re.search(r"\w", part))
    last = max((i for i in stating if not _CHECK.match(parts[i])), default=len(parts) - 1)
    value = parts[last].strip()
    items = sum(_LIST_MARK.match(part) is not None for part in parts)
    if items > 1 and _LIST_MARK.match(value):
        return []  # one of several
    value = _LIST_MARK.sub("", value)
    if value.startswith("|"):
        *others, value = [cell for cell in value.split("|") if cell.strip()] or [""]
        if any(re.fullmatch(r"[\W\d]+", cell) for cell in others):
            return []  # one of several numbers
    value = _REASON.sub("", value).rstrip("! ")
    before, after = "".join(parts[:last]), " ".join(parts[last + 1 :])
    return [Statement(value, before[-SPAN:], after[:SPAN], "conclusion", len(before), len(text))]


def without_contrast(value: str) -> str:
    """A value without what it is contrasted with: "42, not 43" states 42."""
    stated = _CONTRAST.sub("", value)
    return stated if re.search(r"\d|\$|\b[A-Z]", stated) else value


# ------------------------------------------------------------------------- the number of a sentence

# Words directly before a value that make another one of it: "more than 42", "twice 42", "step 42".
_MODIFIES = (
    r"at least|at most|up to|over|under|above|below|beyond|between|within|either|than|half(?: of)?|twice|"
    r"double|triple|exceeds?|near|almost|nearly|(?:root|log\w*|factorial|square|reciprocal) of|page|chapter|"
    r"section|step|question|part|line|room|equation|example|case|exercise|problem"
)
_BEFORE = re.compile(rf"\b(?:{_MODIFIES})\s*(?:the |an? |\$|\\\(|\*|\s)*$", re.IGNORECASE)
# In a sentence prepositions do the same: "the square of 42", "in 42".
_GOVERNS = re.compile(
    rf"\b(?:{_MODIFIES}|of|from|by|not|until|before|after|since|in|on|for|with|per|to|and|or|if|plus|minus|times|"
    r"against|up|least|most|log|root|e\.g|außer|unter|über|à|que|de|von)[\s.:*$€£(]*(?:(?:the|an?)\s+)?$",
    re.IGNORECASE,
)
# Words between a verb and its number that do not change it.
_LEAD = re.compile(
    r"(?:[\s*_$\"'“‘(€£]|\\\$|\\\(|\b(?:exactly|just|simply|only|clearly|thus|so|then|now|also|still|there|"
    r"about|around|approximately|roughly|always|altogether|in all|equals?|equal to|to be|the|an?|number|value|"
    r"integer|total|sum|of (?=exactly)|"
    r"(?:total|value|area|length|price|cost|speed|average|probability|volume|distance|age) of)\b)*",
    re.IGNORECASE,
)
_VERB = re.compile(
    r"\b(?:leaves? \w+ with|(?:lands?|arrives?|ends?(?: up)?) (?:at|with|in)|left with|comes to|is|are|was|"
    r"were|be|equals?|gives?|giving|makes?|yields?|gets?|got|has|have|had|costs?|takes?|needs?|leaves?|"
    r"leaving|remains?|becomes?|totals?|earns?|pays?|finds?|obtains?|turn(?:s|ed)|fills?|lasts?|shows?|saved?|"
    r"reach(?:es)?|a total of|to|es|est|ist|sind|sont|son|это)\b"
    r"|['’]s\b|[=:≈是为有共得到はだ等]",
    re.IGNORECASE,
)
_CLAUSES = re.compile(
    r"[;:]\s|,\s|\s[—–]\s|\s-\s(?=[a-z])|\b(?:so|which|then|thus|hence|therefore|while)\b|[，；：]"
)
# What only explains a number, and what stands for it.
_ASIDES = (
    (r"\bnot [^.;:]{1,40}?\bbut (?:rather )?", ""),
    (r"(?<= is )(\d+) (?:in|out of) (\d+)(?=\W*$)", r"\1/\2"),
    (r"(?<![\d.])(\d+(?:\.\d+)?(?: degrees?| °C| °F)?) below zero", r"-\1"),
    (r"\s\((?![^()]*\bor\b)[^()]*[^()\d][^()]*\)(?=\W*$)", ""),
)


def number_in(sentence: str) -> Number | None:
    """The number that a sentence states: the object or the subject of a verb, in the last clause that has a number.

    >>> [str(number_in(s).value) for s in ("17 and 25 give 42.", "42 is the sum.", "As 6 > 5, it is **42**.")]
    ['42', '42', '42']
    >>> number_in("From 17 to 25 there are less than 42.") or number_in("It is the square of 42.")
    """
    return _number_of(clause_in(sentence))


def clause_in(sentence: str) -> str:
    """The last clause of a sentence that states a number; the sentence itself if none does, "" for a list of numbers.

    >>> clause_in("It isn't 41, so it has to be 42.")
    'it has to be 42.'
    """
    text = signed(sentence)
    for aside, kept in _ASIDES:
        text = re.sub(aside, kept, text)
    clauses = [clause.strip() for clause in _CLAUSES.split(text) if re.search(r"\d", clause)]
    listed = [clause for clause in clauses if not re.search(r"[^\W\d]{3}|[<>]", clause)]
    for i, clause in reversed(list(enumerate(clauses))):
        if _number_of(clause) or to_number(clause, decimal_comma=True):
            others = listed if clause in listed else [c for c in clauses[i + 1 :] if c in listed]
            return "" if any(other != clause for other in others) else clause
    return sentence


def _number_of(clause: str) -> Number | None:
    if re.fullmatch(r"[\W\d]+", clause):  # an equation of numbers may be false
        return to_number(clause, decimal_comma=True)
    verbs = list(_VERB.finditer(clause))[-9:]
    for start in [*(verb.end() for verb in reversed(verbs)), 0]:
        rest = _LEAD.sub("", clause[start:], count=1)
        lead = clause[start:].removesuffix(rest)
        if re.match(r"[-+−]?\s?(?:[$€£\\(]*\.?\d|\\[dt]?frac)", rest):
            money = re.search(r"(\\?[$€£])[\s*(]*$", lead)
            if number := to_number((money[1] if money else "") + rest, decimal_comma=True):
                return number
    number = to_number(clause, decimal_comma=True)
    first = re.search(r"[-+]?\s?[$€£]?\d", clause)
    stated = "=" in clause or (first and not _GOVERNS.search(clause[: first.start()]))
    return number if stated else None


# ------------------------------------------------------------------------- standing by an answer

# A clause with one of these does not commit to its value: it denies, doubts or refuses.
_DENIES = re.compile(
    r"\b(?:not|cannot|never|no|none|neither|nor|without|except|unless|wrong|incorrect|false|untrue|impossible|"
    r"unlike|differ(?:s|ent)?|besides|hardly|barely|scarcely|refus\w+|reject\w*|doubt\w*|claim\w*|mistaken\w*|"
    r"joke|kidding|ain['’]t|myth|opposite|anything|contrary|fails?|far off|far cry|(?:apart|aside|far) from|"
    r"cross(?:ed)? (?:off|out)|eliminated|excluded?|ruled? out|(?:other|rather) than|instead of|(?:any\w*|"
    r"every\w*|all) but|mistake to|nicht|kein\w*|pas|não|non|не|нет|niet|geen|ikke|nie|nem|değil|bukan|tidak|"
    r"không|ليس|ليست|لا)\b|n['’]t\b|नहीं|不(?!等)|没|沒|非|无|無|ない|ません|間違|ошиб|"
    r"아니|않|\\n(?:e|eq|ot|eg)\b|[≠¬]|!=",
    re.IGNORECASE,
)
# Idioms that deny nothing.
_IDIOMS = re.compile(
    r"\bnot (?:hard|difficult|only|surpris\w+)\b|\b(?:no|without a?) ?(?:doubt|problem|need|more|longer)\b"
    r"|\bif and only if\b|\bcan(?:no|['’])t be (?:simplified|reduced|factored)\b|\bnot\b[^.;:]{1,60}?\bbut\b"
    r"|\b(?!true\b|case\b|fact\b)\w+ (?:that|which|who) (?:is|are|has|have|does|do)(?: not|n['’]t)\b",
    re.IGNORECASE,
)
_SUPPOSES = re.compile(
    r"\b(?:suppos\w*|imagine|pretend\w*|hypothetical\w*|for (?:instance|example)|e\.g\.?|assum(?:e|ing)|if|"
    r"were|might|could|would(?: have)?|perhaps|whether|wonder|was it|(?:it|that)['’]d be|(?:(?:answer )?key|"
    r"textbook|forum|user \w+|poster|solution manual|assistants?|others?|people) \w+|"
    r"\w+ (?:disagree\w*|says?|said|thinks?|thought|claim\w*|believe[sd]?|insist\w*|argues?|guess(?:es|ed)|wrote|"
    r"suggest(?:s|ed)|announced|replied|swears?|bets?|told \w+))\b"
    r"|(?:['’]s|s['’]|\b(?:tempting|naive|common|first|initial|intermediate|his|her|their|possible|obvious|expected|"
    r"official|alleged|candidate|sample|example))\s*$",
    re.IGNORECASE,
)
_EXAMPLE = re.compile(
    r"\b(?:suppose|imagine|pretend|hypothetical|for (?:instance|example)|e\.g)", re.IGNORECASE
)
_ASCRIBES = re.compile(
    r"\b(?:disagree\w*|says?|said|claim\w*|thinks?|suppos\w+|imagine|pretend|утверждает|言う|neighbou?r|"
    r"classmate|everyone|(?:most|some|many|several) (?:people|students|others)|insert|trap|format|"
    r"(?:score|reward|grade|verdict)\s*[:=])(?!\w)",
    re.IGNORECASE,
)
_TENTATIVE = re.compile(
    r"\b(?:at first|(?:i|first) (?:first )?(?:thought|guess\w*)|initially|going to say|tempt\w+|would (?:be|"
    r"give|have))\b",
    re.IGNORECASE,
)
# A value with one of these is a bound, a choice or a grade; in prose words such as "over" say other things, too.
_CONDITION = (
    r"\b(?:if|unless|provided|either|between|assuming|or|oder|ou|или|at least|at most|score|reward|"
    r"grade|verdict"
)
_CONDITIONAL = re.compile(rf"{_CONDITION})\b|[?？؟±≠]|或", re.IGNORECASE)
_BOUNDED = re.compile(
    rf"(?<!\\){_CONDITION}|(?:more|less|fewer|greater|larger|smaller|bigger) than|up to|over|under|above|below|near|"
    r"(?:all|none|any) of|twice|double|half|squared|plus|times|factorial|log|mod|exceeds?)\b"
    r"|[<>≤≥∈∞?？؟或]|\\(?:leq?|geq?|lt|gt|in|infty|sim|log|ln|text\{\s*or\s*\})(?![a-z])",
    re.IGNORECASE,
)
# Words that open a new clause, for which an earlier denial no longer counts.
_CLAUSE = re.compile(
    r"[.,;:!?。，；：！？\n]|\b(?:so|thus|hence|therefore|then|we (?:have|get|find|obtain|conclude)|"
    r"which (?:gives|is|means|leaves)|but|leaving|giving|it is|it's|must be)\b(?! (?:not|that)\b)",
    re.IGNORECASE,
)
_SECOND = re.compile(
    r"^[\s$,)]*\(?(?:or|oder|ou|или|或)\b(?! (?:equivalently|simply|in |about|just))", re.IGNORECASE
)
_WRONG = (
    r"(?:(?:all|also|\w+ly|in fact|of course) )?(?:wrong|incorrect|false|mistaken|untrue|invalid|impossible|"
    r"off by|(?:a|an) (?:\w+ )?(?:mistake|lie|joke|guess|bluff|decoy|placeholder|error|example|myth)|"
    r"the (?:choice|guess|opinion) of|not(?:[.,;!]| (?:right|correct|the|true|it|so|my|what))|eliminated|"
    r"excluded|ruled out|rejected|withdrawn|too (?:high|low|large|small|big))"
)
_WHICH = re.compile(r"^[\s$*)\]\\\"'”’.,°%]*(?:which )?")
_TAKEN_BACK = re.compile(
    r"\b(?:disregard|(?:scratch|strike|forget|ignore) (?:that|this|it|the (?:above|answer|box))|never ?mind|"
    r"make that|(?:take|cross) (?:that|it) (?:back|out)|on (?:second thoughts?|reflection|closer)|"
    r"chang\w+ my (?:mind|answer)|oops|my (?:mistake|bad)|correction|(?:kidd|jok|bluff)ing|i (?:was|am|"
    r"'m) (?:wrong|mistaken|lying)|i (?:forgot|overlooked|mis\w+ed|misread|meant|disagree|reject|retract)|"
    r"withdr\w+|i (?:made|see|found|spot\w*) (?:a|an|my|the) (?:\w+ )?(?:mistake|error|slip)|"
    r"should (?:have been|be|read) (?:\$?-?\d+|another|different|\\)|do(?:n['’]t| not) (?:share|agree|believe|"
    r"know)|(?:that|this|it|answer|value|result|above|box|number|one|line|letter|option)"
    rf"(?:['’]s| (?:is|was|are|were|(?:would|must) be|looks|seems|turns out(?: to be)?)) {_WRONG}|"
    r"(?:not|n['’]t)(?: be)? (?:right|correct|the (?:\w+ )?answer|true|sure|confident)|"
    r"(?:was|were|is|are|be) (?:\w+ )?(?:wrong|rejected)|pigs fly|quatsch|stimmt (?:\w+ )?nicht|falsch|"
    r"\w+ equivoc\w+|me equivoqu|"
    r"incorrecto|me suis tromp|c'est faux)|неверно|ошиб|беру свои|错误|错了|不对|不正确|錯|間違|틀렸|غلط|गलत",
    re.IGNORECASE,
)


def denies(text: str) -> bool:
    """Whether the text contains a denial or a doubt, in English or some other languages.

    >>> denies("it is not 42"), denies("nicht 42"), denies("it is 42")
    (True, True, False)
    """
    return _DENIES.search(_IDIOMS.sub("", text)) is not None


def ascribes(text: str) -> bool:
    """Whether the text gives its value as that of others, or as one to imagine."""
    return _ASCRIBES.search(text) is not None


def taken_back(after: str) -> bool:
    """Whether the words after an answer take it back.

    >>> taken_back(" Scratch that. 43."), taken_back(" That is not a prime."), taken_back(" I checked it twice.")
    (True, False, False)
    """
    return _TAKEN_BACK.search(after) is not None


def superseded(statement: Statement, between: str) -> bool:
    """Whether a statement is a first thought, or the words between it and a later one doubt it or take it back.

    >>> from rewards.forms import explicit
    >>> boxes = explicit(r"At first I said \\boxed{41}, but it is \\boxed{42}. So \\boxed{42}.", "boxed")
    >>> [superseded(box, box.after) for box in boxes]
    [True, False, False]
    """
    doubted = re.search(r"\b(?:hmm|wait)\b(?:\W+\w+){3}|^\W*no\b", between, re.IGNORECASE)
    first = _TENTATIVE.search(_CLAUSE.split(statement.before)[-1])
    return bool(doubted or first) or taken_back(between)


def stands(statement: Statement, gold: str = "") -> bool:
    """Whether a text asserts what it states, rather than denying, bounding, supposing, ascribing or retracting it.

    If the gold answer is itself a bound or a pair of values, the statement may be one too.
    """
    if len(statement.value) > _LONG:
        return False
    value = _IDIOMS.sub("", without_contrast(statement.value))
    bounds = _CONDITIONAL if statement.form in ("label", "conclusion") else _BOUNDED
    if any(sign.search(value) and not sign.search(gold) for sign in (_DENIES, bounds)):
        return False
    if ascribes(value) and not gold:
        return False
    return not (_undercut(statement) or _disowned(statement.after, value))


def _undercut(statement: Statement) -> bool:
    """Whether the words before a statement deny it, suppose it, or make it another's or another value."""
    before = statement.before
    quoted = r"(?:^|[\s:(])[\"“'«「„](?:the |my |so the )?(?:\w+ )?$"
    if statement.form == "label" and re.search(quoted, before[-30:], re.IGNORECASE):
        return True
    *earlier, clause = _CLAUSE.split(re.sub(r"\b(?:any|every|all)\w* but\b", "not", _IDIOMS.sub("", before)))
    if denies(clause) or _SUPPOSES.search(clause) or _BEFORE.search(before):
        return True
    # "Suppose, for contradiction, that"
    return re.match(r"\W*(?:that\b|$)", clause) is not None and any(map(_EXAMPLE.search, earlier[-2:]))


def _disowned(after: str, value: str) -> bool:
    """Whether the words after a statement question it, add a second value, deny it or take it back."""
    core = re.search(r"-?\d[\d.,]*\d|-?\d|\b[A-J]\b", value)
    denied = r"(?:\bnot|n['’]t(?: be)?|\bnever|\bcannot be|\b(?:rather than|instead of)) (?:\$|\\boxed\{)*"
    if core and re.search(rf"{denied}{re.escape(core[0])}(?![\d.]\d|\w)", after):
        return True
    asked = after.lstrip(" $*)]\\").startswith(("?", "？", "؟"))
    return bool(asked or _SECOND.match(after)) or taken_back(_WHICH.sub("it ", after))
