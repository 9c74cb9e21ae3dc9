r"""Answers in prose: labels, conclusions, and whether a text stands by what it states.

A heuristic, for texts that keep to no form; ``answer_reward`` gives its measured rates.  The same rules tell whether
the words around a box, a line or a tag deny it, suppose it, ascribe it to another or take it back.

It does not judge what is stated: ``rewards.quantities`` reads the number and ``rewards.answers`` compares it with the
gold answer.  It knows nothing of thoughts: it gets the text after one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from rewards.forms import BOX, MOST, SPAN, Statement
from rewards.quantities import Number, signed, to_number

_NOUNS = (
    "answer|result|solution|respuesta|resultado|resposta|antwort|ergebnis|lösung|réponse|reponse|résultat|"
    "risposta|risultato|antwoord|ответ|результат|відповідь|odpowiedź|wynik|cevap|svar|答案|结果|答え|答|정답|답|"
    "उत्तर|الجواب|الإجابة|جواب"
)
# Every repeat is bounded: a completion may be a hundred thousand line feeds.
_LABEL = re.compile(
    rf"(?:\b(?:{_NOUNS})|答案|结果|答え|正解|정답|답)\s{{0,9}}(?:\([^)\n]{{0,40}}\))?\W{{0,4}}?"
    r"(?:\b(?:is|are|was|were|equals|equal to|must be|will be|should be|comes to|es|ist|est|é|è|lautet|jest|dır|هو|هي)\b"
    r"|[:：=]|是|为|為|は|은|는|\*\*?[:：]|[:：]\*\*?)\s{0,9}[:：]?"
    r"|(?:^|\n)[#*_ ]{0,9}(?:final\s{1,9})?(?:answer|result|respuesta|resultado|antwort|ergebnis|réponse|résultat|risposta|"
    r"ответ|答案|答え|정답)[*_ ]{0,9}(?=\n)"
    r"|\b(?:final|correct|right|my) (?:choice|option|letter) is\b|उत्तर\s{1,9}",
    re.IGNORECASE | re.MULTILINE,
)
_BARE = 4000  # characters of a text without a label
# A full stop between digits is a decimal point; one after white space or a lone digit numbers a list.
_SENTENCE = re.compile(
    r"(?<=[.!?。！？।؟])(?<!e\.g\.)(?<!i\.e\.)(?!(?<=\d!)\s+[a-z])(?=\s|$|[^\s\d.,)\]}*$`\"'”’<!?])|(?<=[.!?。！？।؟][*)\"'”’$])(?=\s|$)|\n+"
)
_SAYS_WHY = re.compile(
    r"[,;]?\s*\b(?:because|since (?=.*\d)|given that|as required|as (?:we|you) can|that is, (?=[a-z]))\b.*",
    re.S,
)
_REASON = re.compile(
    r"[,;]?\s*\b(?:because|since|given that|which|where|so that|as required|as (?:we|you) can)\b.*|</answer>.*|\s[—–]\s.*"
    r"|\s*(?:です|である|है|हैं|입니다|이다|입니다)(?=\W*$)",  # the copula, where a language puts it last
    re.S,
)
# "42, not 43" and "42 rather than 43" state 42.
_CONTRAST = re.compile(
    r"(?<=[\w)}$*%])[,;]?\s+(?:and |but )?(?:not|rather than|instead of|as opposed to|unlike)\b(?! \w+ (?:is|are)\b)"
    r"(?:(?!\bbut\b)[^.;:,]|\.(?=\d))*(?:, (?:as|since|because|which)\b.*|: [^\d]*)?$",
    re.IGNORECASE | re.DOTALL,
)
_NEXT_LINE = re.compile(r"^[*_ ]*\n\s*(?:\d{1,3}[.)]|[-*•])\s+(?=\S)")
_LIST_MARK = re.compile(r"^\s*(?:\d{1,3}[.)]|[-*•])\s+(?=\S)")
_CHECK = re.compile(
    r"^\s*\((?=.*[a-z]{2})(?:[^()]|\([^()]*\))*\)\W*$|^\W*(?:check|verif|proof|to (?:check|verify)|note|hint|source|step \d|let me (?:check|verify)|try(?:ing)? |"
    r"don['’]t|remember|if you)",
    re.IGNORECASE,
)


def labelled(text: str) -> list[Statement]:
    """What follows "the answer is", "Answer:" and their like in some other languages; boxes apart."""
    return list(_labels(text))[: MOST + 1]


def _labels(text: str) -> Iterator[Statement]:
    matches = list(_LABEL.finditer(text))
    for match, following in zip(matches, [*matches[1:], None], strict=False):
        end = match.end() + SPAN if following is None else min(match.end() + SPAN, following.start())
        ahead = _NEXT_LINE.sub("\n", text[match.end() : end])
        parts = [part for part in sentences(ahead) if part.strip(" \n*:.$\\[(")]
        span = parts[0] if parts else ""
        head = re.split("</?think>", _REASON.sub("", span))[0].lstrip("*_ ")
        if BOX.search(span) or not head.strip():  # the box is a statement of its own
            continue
        end = match.end() + ahead.find(span) + len(span)
        yield Statement(
            head,
            text[max(0, match.start() - SPAN) : match.start()],
            text[end : end + SPAN],
            "label",
            match.start(),
            end,
        )


def sentences(text: str) -> list[str]:
    """The sentences of a text; a line is one at least."""
    return [part for part in _SENTENCE.split(text) if part]


def concluded(text: str, kind: str = "number") -> list[Statement]:
    """The last sentence of a text that may state an answer; what follows it may take that back.

    A table's last cell and a list's last entry are sentences.  Checks and remarks in brackets are passed over.
    """
    parts = [part for part in sentences(text[-_BARE:]) if part.strip()]
    if not parts or len(text) > _BARE:
        return []
    sign = re.compile({"choice": r"\b[A-J]\b", "exact": r"\w"}.get(kind, r"\d|[=$\\]"))
    stating = [
        i
        for i, part in enumerate(parts)
        if sign.search(part) and re.search(r"\w", part) and not _CHECK.match(part)
    ]
    last = stating[-1] if stating else len(parts) - 1
    value = parts[last].strip()
    items = sum(_LIST_MARK.match(part) is not None for part in parts)
    if items > 1 and _LIST_MARK.match(value) and not re.search(r"[:=]|\b(?:is|are)\b", value):
        return []  # one of several
    value = _LIST_MARK.sub("", value)
    if value.startswith("|"):
        *others, value = [cell for cell in value.split("|") if cell.strip()] or [""]
        if any(re.fullmatch(r"[\W\d]+", cell) for cell in others):
            return []
    value = without_contrast(_SAYS_WHY.sub("", value).rstrip("! "))
    before, after = "".join(parts[:last]), " ".join(parts[last + 1 :])
    return [Statement(value, before[-SPAN:], after[:SPAN], "conclusion", len(before), len(text))]


def without_contrast(value: str) -> str:
    """A value without what it is contrasted with: "42, not 43" states 42."""
    stated = _CONTRAST.sub("", value)
    return stated if re.search(r"\d|\$|\b[A-Z]", stated) else value


# ------------------------------------------------------------------------- standing by an answer

# A clause with one of these does not commit to its value: it denies, bounds, offers or asks.
_DENIES = re.compile(
    r"\b(?:not|cannot|never|no|none|neither|nor|without|except|unless|wrong|incorrect|false|untrue|unlike|"
    r"hardly|barely|scarcely|refuse\w*|reject\w*|doubt\w*|claim\w*|pretend\w*|mistaken\w*|joke|kidding|ain['’]t|"
    r"differ(?:s|ent)?|cross(?:ed)? (?:off|out)|eliminat\w*|discard\w*|myth|besides|apart from|aside from|opposite|anything|impossible|den(?:y|ies)|excluded?|"
    r"ruled? out|contrary|fails?|far off|nowhere near|far cry|mistake to|"
    r"other than|rather than|instead of|far from|(?:any\w*|every\w*|all) but|nicht|kein\w*|pas|não|nao|non|не|"
    r"нет|niet|geen|ikke|inte|nie|nem|değil|bukan|tidak|không|ليس|ليست|لا)\b|n['’]t\b|नहीं|不(?!等)|没|沒|非|无|無|ない|"
    r"ません|間違|ошиб|아니|않|\\n(?:e|eq|ot)\b|≠|\\neg\b|¬|!=",
    re.IGNORECASE,
)
# Idioms that deny nothing.
_IDIOMS = re.compile(
    r"\bnot (?:hard|difficult|only|surpris\w+)\b|\bno (?:doubt|problem|need|worries|more|longer)\b"
    r"|\bwithout (?:a |any )?(?:doubt|loss)\b|\bnot\b[^.;:]{1,60}?\bbut\b|\bif and only if\b|\b(?!true\b|case\b|fact\b)\w+ (?:that|which|who) (?:is|are|has|have|does|do)(?: not|n['’]t)\b"
    r"|\bcannot be (?:simplified|reduced)\b",
    re.IGNORECASE,
)
_SUPPOSES = re.compile(
    r"\b(?:suppos\w*|assum(?:e|ing)|imagine|pretend\w*|hypothetical\w*|for (?:instance|example)|e\.g\.?|if|were|"
    r"would(?: have)?|might|could|perhaps|whether|wonder|disagree\w*|was it|(?:it|that)['’]d be|"
    r"(?:answer key|key|textbook|forum|user \w+|poster|solution manual|assistants?|others?|people) \w+|"
    r"\w+ (?:says?|said|thinks?|thought|claims?|claimed|believes?|believed|insists?|argues?|guess(?:es|ed)|"
    r"wrote|suggests?|suggested|announced|replied|swears?|bets?|told \w+))\b"
    r"|(?:['’]s|s['’]|\b(?:tempting|naive|common|first|initial|intermediate|his|her|their|possible|obvious|expected|official|"
    r"alleged|candidate|sample|example))\s*$",
    re.IGNORECASE,
)
_EXAMPLE = re.compile(
    r"\b(?:suppos\w*|imagine|pretend\w*|hypothetical\w*|for (?:instance|example)|e\.g\.?)", re.IGNORECASE
)
_ASCRIBES = re.compile(
    r"\b(?:disagree\w*|(?:says?|said|claim\w*|thinks?|insists?|suppos\w+|imagine|pretend|утверждает|言う)|"
    r"(?:most|some|many|several) (?:people|students|others)|neighbou?r|classmate|everyone|insert|trap|format)\b|"
    r"\b(?:score|reward|grade|verdict)\s*[:=]",
    re.IGNORECASE,
)
_TENTATIVE = re.compile(
    r"\b(?:at first|first (?:i )?(?:thought|guess\w*)|initially|i (?:first )?thought|going to say|tempt\w+|originally|"
    r"my first|naively|would (?:be|give|have))\b",
    re.IGNORECASE,
)
# What directly before a value makes another one of it.
_MODIFIES = re.compile(
    r"\b(?:at least|at most|(?:more|less|fewer|greater|larger|smaller|bigger) than|up to|over|under|above|below|between|"
    r"either|half(?: of)?|twice|double|triple|no (?:more|less|fewer) than|exceeds?|root of|log(?:arithm)? of|near|almost|"
    r"nearly|step|question|part|line|equation|example|case|exercise|problem|factorial of|square of|reciprocal of)"
    r"\s*(?:the |an? |\$|\\\(|\*|\s)*$",
    re.IGNORECASE,
)
_BOUNDS = re.compile(
    r"(?<!\\)\b(?:at least|at most|more than|less than|fewer than|greater than|larger than|smaller than|bigger than|"
    r"up to|over|under|above|below|between|either|or|oder|ou|или|if|all of|none of|any of|twice|double|triple|half|"
    r"square root|squared|cubed|near|plus|times|score|reward|grade|verdict|factorial|log|logarithm|base|mod|modulo|"
    r"exceeds?|minimum of|maximum of|no more|no less)\b"
    r"|或|または|[<>≤≥∈∞]|\\(?:leq?|geq?|lt|gt|in|infty|sim|log|ln|text\{\s*or\s*\})(?![a-z])|\?|？|؟",
    re.IGNORECASE,
)
_CONDITION = re.compile(
    r"\b(?:if|unless|provided|either|between|assuming|as long as|or|oder|ou|или|at least|at most|score|reward|grade|verdict)\b"
    r"|[?？؟±≠]|或",
    re.IGNORECASE,
)
# Words that open a new clause, for which an earlier denial no longer counts.
_CLAUSE = re.compile(
    r"[.,;:!?。，；：！？\n]|\b(?:so|thus|hence|therefore|then|we (?:have|get|find|obtain|conclude)|which (?:gives|is|means|"
    r"leaves)|but|leaving|giving|it is|it's|must be)\b(?! (?:not|that)\b)",
    re.IGNORECASE,
)
_SECOND = re.compile(
    r"^[\s$,)]*(?:\{|(?:\\text\s*\{)?\s*\(?(?:or|oder|ou|или|或)\b"
    r"(?! (?:equivalently|simply|in |about|approximately|roughly|rather (?:than|not)|just)))",
    re.IGNORECASE,
)
_WRONG = (
    r"(?:all |clearly |obviously |actually |in fact |simply |completely |plainly |also |of course |leider )?(?:wrong|incorrect|"
    r"false|mistaken|untrue|(?:a|an) (?:\w+ )?(?:mistake|lie|joke|guess|bluff|decoy|placeholder|error|example|myth)|invalid|"
    r"impossible|not (?:right|correct|the|true|it|so|my|what|\d|\$|\\)|not[.,;!]|isn't|wasn't|off by|eliminated|"
    r"excluded|ruled out|rejected|out of the question|too (?:high|low|large|small|big))"
)
_TAKEN_BACK = re.compile(
    r"\b(?:scratch (?:that|this)|strike that|never ?mind|disregard|on (?:second thoughts?|reflection|closer)|"
    r"chang\w+ my (?:mind|answer)|i disagree|cross (?:that|it) out|"
    r"take (?:that|it|this) back|forget (?:that|it|this)|ignore (?:that|this|it|the (?:above|answer|box))|"
    r"(?:kidding|joking|bluffing)|i (?:was|am|'m) (?:wrong|mistaken|lying)|oops|my mistake|my bad|"
    r"i (?:forgot|overlooked|misread|missed|miscounted|miscalculated|mis\w+ed)|"
    r"i (?:made|see|found|spot\w*) (?:a|an|my|the) (?:\w+ )?(?:mistake|error|slip)|i meant|make that|"
    r"should (?:have been|be|read) (?:\$?-?\d+|another|different|\\)|correction|erratum|i retract|withdraw\w*|retracted|"
    r"(?:that|this|it|answer|value|result|above|box|number|one|line|letter|option) (?:is|was|are|were|would be|must be|looks|"
    rf"seems|turns out(?: to be)?) {_WRONG}|(?:that|it|this)['’]s {_WRONG}|"
    r"(?:isn|wasn|can|doesn|don|aren)['’]?t(?: be)? (?:right|correct|the answer|it|my|true|\\boxed|what)|"
    r"not (?:right|correct|the (?:final |right |correct )?answer|true|sure|confident)|"
    r"(?:was|were|is|are|be) (?:\w+ )?(?:wrong|rejected|withdrawn)|i (?:reject|withdraw)|i do(?:n['’]t| not) (?:share|agree|believe|endorse)|do(?:n['’]t| not) know|pigs fly|seriously|(?:have|had|did) not (?:solve|work)\w*|hereby|"
    r"quatsch|zurücknehmen|(?:das|es) zurück|stimmt (?:\w+ )?nicht|falsch|verrechnet|me equivoqu|incorrecto|me suis tromp|c'est faux)"
    r"|неверно|ошиб|беру свои|错误|错了|不对|不正确|錯|間違|틀렸|غلط|गलत",
    re.IGNORECASE,
)
_IS_WRONG = re.compile(
    rf"^[\s$*)\]\\\"'”’.°%]*(?:which |that )?(?:is|was|looks|seems|cannot be|can't be|ist|est|es)\s+(?:{_WRONG}|the (?:choice|guess|opinion|answer) of)",
    re.IGNORECASE,
)
# Not a retraction: "42 is not prime", "that is not the only way".
_STANDS = re.compile(
    r"\b(?:no|not a|without|avoid\w*|common) (?:mistake|error)\w*\b|\bnot (?:only|just|prime|hard|surpris\w+|needed|even|odd)\b",
    re.IGNORECASE,
)


def denies(text: str) -> bool:
    """Whether the text contains a denial or a doubt, in English or some other languages.

    >>> denies("it is not 42"), denies("nicht 42"), denies("it is 42")
    (True, True, False)
    """
    return _DENIES.search(_IDIOMS.sub("", text)) is not None


def taken_back(after: str) -> bool:
    """Whether the words after an answer take it back.

    >>> taken_back(" Scratch that. 43."), taken_back(" That is not a prime."), taken_back(" I checked it twice.")
    (True, False, False)
    """
    return _TAKEN_BACK.search(_STANDS.sub("", after)) is not None


def tentative(statement: Statement) -> bool:
    """Whether a statement is a first thought, which counts only where no other follows.

    >>> from rewards.forms import explicit
    >>> [tentative(box) for box in explicit(r"At first I said \\boxed{41}, but it is \\boxed{42}.", "boxed")]
    [True, False]
    """
    return _TENTATIVE.search(_CLAUSE.split(statement.before)[-1]) is not None


def reconsidered(after: str) -> bool:
    """Whether the words between a statement and a later one take the first back, or only begin to doubt it."""
    return (
        taken_back(after)
        or re.search(r"\b(?:hmm|wait)\b(?:\W+\w+){3}|^\W*no\b", after, re.IGNORECASE) is not None
    )


def stands(statement: Statement, gold: str = "") -> bool:
    """Whether a text asserts what it states, rather than denying, bounding, supposing, ascribing or retracting it.

    If the gold answer is itself a bound or a pair of values, the statement may be one too.
    """
    value = _IDIOMS.sub("", without_contrast(statement.value))
    bounds = _CONDITION if statement.form in ("label", "conclusion") and not gold else _BOUNDS
    if any(sign.search(value) and not sign.search(gold) for sign in (_DENIES, bounds)):
        return False
    if statement.form == "label" and re.search(
        r"(?:^|[\s:(])[\"“'«「„](?:the |my |so the )?(?:\w+ )?$", statement.before[-30:], re.IGNORECASE
    ):
        return False  # quoted
    before = re.sub(
        r"\b(?:any|every|all)\w* but\b", "not", _IDIOMS.sub("", statement.before).rstrip(" $*\\([")
    )
    *earlier, clause = _CLAUSE.split(before)
    if denies(clause) or _SUPPOSES.search(clause) or _MODIFIES.search(statement.before):
        return False
    if earlier and not re.search(r"\w", clause) and _EXAMPLE.search(earlier[-1]):
        return False
    if not gold and statement.form != "boxed" and _ASCRIBES.search(value):
        return False
    after = statement.after
    if (core := re.search(r"-?\d[\d.,]*\d|-?\d|\b[A-J]\b", value)) and re.search(
        rf"(?:\bnot|n['’]t(?: be)?|\bnever|\bcannot be|\brather than|\binstead of)\s+(?:\$|\\boxed\{{)*{re.escape(core[0])}(?![\d.]\d|\w)",
        after,
    ):
        return False
    asked = after.lstrip(" $*)]\\").startswith(("?", "？", "؟"))
    return not (asked or _SECOND.match(after) or _IS_WRONG.match(after) or taken_back(after))


# Words that may stand between a verb and its number; any other may change the value.
_LEAD = (
    r"(?:[\s*_$\"'“‘(€£]|\\\$|\\\(|\b(?:exactly|just|simply|only|indeed|clearly|therefore|thus|so|then|now|equal to|equals?|to be|the|"
    r"an?|number|value|integer|total|sum|there|about|altogether|in all|always|also|around|of (?=exactly)|a total of|"
    r"approximately|roughly|still|left with|(?:area|length|width|height|price|cost|speed|average|mean|probability|perimeter|"
    r"volume|distance|age|weight|mass|temperature|chance|value) of)\b)*"
)
_VERB = re.compile(
    r"\b(?:leaves? \w+ with|is|are|was|were|be|equals?|gives?|gave|giving|makes?|made|making|yields?|gets?|got|has|have|had|costs?|takes?|needs?|"
    r"leaves?|leaving|remains?|becomes?|totals?|comes to|amounts? to|results? in|earns?|pays?|adds? up to|sums? to|reach(?:es)?|"
    r"obtain|find|a total of|(?:lands?|arrives?|ends?(?: up)?) (?:at|with|on|in)|left with|turn(?:s|ed)|fills?|lasts?|to|es|est|ist|sind|beträgt|sont|son|vale)\b|['’]s\b|[=:≈是为有共得到はだ等]|就是|равн\w+|это",
    re.IGNORECASE,
)
_SUBJECT = re.compile(
    r"^(?:\W|\b(?:so|therefore|thus|hence|and|then|finally|the (?:value|number)|there (?:are|were|is))\b)*"
    r"(?P<value>-?\s?[$€£]?\d[\d.,/]*(?:\s[^\W\d]+){0,3}?)\s+(?:is|are|was|were|did(?:n['’]t| not)|have|will)\s+"
    r"(?!(?:not|never|wrong|incorrect|false|less|more|smaller|larger|greater|bigger|close|near|almost|too)\b)[^\d]*$",
    re.IGNORECASE,
)
# Words before a number that make it a part of something else: "the square of 42", "page 42", "more than 42".
_GOVERNS = re.compile(
    r"\b(?:of|than|from|by|page|step|under|over|above|below|not|between|near|nearly|almost|until|before|after|since|"
    r"in|on|for|with|per|chapter|section|question|problem|room|case|line|to|and|or|if|beyond|within|plus|minus|times|against|under|up|least|"
    r"most|log|root|half|twice|double|triple|e\.g|example|außer|unter|über|à|que|de|von)[\s.:*$€£(]*(?:(?:the|an?)\s+)?$",
    re.IGNORECASE,
)
_CLAUSES = re.compile(
    r"[;:]\s|,\s(?!\d{3}\b)|\s[—–]\s|\s-\s(?=[a-z])|\b(?:so|which|then|thus|hence|therefore|while)\b|[，；：]"
)


def number_in(sentence: str) -> Number | None:
    """The number that a sentence states: the object or the subject of a verb, in the last clause that has a number.

    >>> [str(number_in(s).value) for s in ("Adding 17 and 25 gives 42.", "42 is the sum of both.", "As 6 > 5, it is **42**.")]
    ['42', '42', '42']
    >>> number_in("From 17 to 25 there are less than 42.") or number_in("It is the square of 42.")
    """
    return _number_of(clause_in(sentence))


def clause_in(sentence: str) -> str:
    """The last clause of a sentence that states a number; the sentence itself if none does, "" for a list of numbers.

    >>> clause_in("It isn't 41, so it has to be 42.")
    'it has to be 42.'
    """
    clauses = [
        clause.strip() for clause in _CLAUSES.split(_without_asides(sentence)) if re.search(r"\d", clause)
    ]
    listed = [clause for clause in clauses if not re.search(r"[^\W\d]{3}", clause)]
    for i, clause in reversed(list(enumerate(clauses))):
        if _number_of(clause) is not None or to_number(clause, decimal_comma=True) is not None:
            others = listed if clause in listed else [c for c in clauses[i + 1 :] if c in listed]
            return "" if any(other != clause for other in others) else clause
    return sentence


def _number_of(clause: str) -> Number | None:
    verbs = list(_VERB.finditer(clause))
    for start in [*(verb.end() for verb in reversed(verbs)), 0]:
        tail = clause[start:]
        lead = re.match(_LEAD, tail, re.IGNORECASE)
        rest = tail[lead.end() :] if lead else tail
        if re.match(r"[-+−]?\s?(?:[$€£\\(]*\.?\d|\\[dt]?frac)", rest) and (
            number := to_number(_signed(tail, rest), decimal_comma=True)
        ):
            return number
    if (subject := _SUBJECT.match(clause)) and (number := to_number(subject["value"], decimal_comma=True)):
        return number
    number = to_number(clause, decimal_comma=True)
    if number is not None and "=" in clause:
        return number
    first = re.search(r"[-+]?\s?[$€£]?\d", clause)
    if number is None or first is None or _GOVERNS.search(clause[: first.start()]):
        return None
    return number


def _signed(tail: str, rest: str) -> str:
    """The number with the currency that stood before it."""
    money = re.search(r"(\\?[$€£])[\s*(]*$", tail[: len(tail) - len(rest)])
    return (money[1] if (money and tail.count("$") == 1) or (money and money[1] != "$") else "") + rest


def _without_asides(sentence: str) -> str:
    """A sentence without what only explains its number: brackets, or "between 10 and 20" after it."""
    sentence = signed(sentence)
    sentence = re.sub(r"\bnot [^.;:]{1,40}?\bbut (?:rather )?", "", sentence)
    sentence = re.sub(r"(?<= is )(\d+) (?:in|out of) (\d+)(?=\W*$)", r"\1/\2", sentence)
    sentence = re.sub(r"(?<![\d.])(\d+(?:\.\d+)?(?: degrees?| °C| °F)?) below zero", r"-\1", sentence)
    sentence = re.sub(
        r"(?<=\d )((?:[^\W\d]+ ){0,4}?)(?:between|from|among) \d+(?:\.\d+)?(?: (?:and|to) \d+(?:\.\d+)?)?(?=\W*$)",
        r"\1",
        sentence,
    )
    return re.sub(r"\s\((?![^()]*\bor\b)[^()]*[^()\d][^()]*\)(?=\W*$)", "", sentence)
