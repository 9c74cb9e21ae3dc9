r"""Right answers as people and models write them, in every form, and attacks by the form itself: made, not collected.

    python tests/rewards/natural_answers.py     # prints every case, a line each

For test_answer_sets.py and benchmarks/answer_sets.py.  A sentence has one place, ``{}``, for the answer in its form.
Sentences are chosen for words that a reader of prose would stumble over: conditions, denials, bounds, other values,
other people, questions restated.  A seeded draw pairs them with answers of their kind.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

Case = dict[str, Any]

# kind of answer -> (kind of reward, gold answer, the ways to write it)
VALUES: dict[str, list[tuple[str, str, tuple[str, ...]]]] = {
    "count": [
        ("number", "42", ("42", "42.0", r"\text{42}", "**42**", r"\mathbf{42}")),
        ("number", "7", ("7", "7.", "x = 7", r"n=7", r"7\text{ }")),
        ("number", "1234", ("1234", "1,234", r"1{,}234", r"1\,234", "1 234")),
        ("number", "150", ("150", r"\frac{300}{2}", "1.5e2", r"1.5 \times 10^2", "100 + 50 = 150")),
        ("number", "1000000", ("1,000,000", "1000000", "10^6", "1 million", r"1\,000\,000")),
        ("number", "0", ("0", "0.0", "0.")),
    ],
    "items": [
        ("number", "42", ("42 apples", r"42\text{ apples}", r"42 \text{ of them}", "42")),
        ("number", "18", (r"18\ \text{students}", "18 students", r"18 \mathrm{\ boxes}", "18 people")),
    ],
    "measure": [
        ("number", "12 m", ("12 m", r"12\text{ m}", "12 meters", r"12\,\mathrm{m}", "12")),
        ("number", "65", ("65 km/h", r"65\text{ miles per hour}", r"65\ \mathrm{mph}", "65 mph")),
        ("number", "2.5", ("2.5 hours", r"2.5\text{ L}", r"\frac{5}{2}", r"2\frac{1}{2}", "2 1/2", "5/2", "2.50 kg")),
        ("number", "36", (r"36\text{ cm}^2", r"36\ \text{square units}", "36 cm^2", r"36\,\mathrm{cm}^{2}")),
    ],
    "money": [
        ("number", "5", ("$5", r"\$5", r"\$5.00", "5 dollars", r"5\text{ dollars}", "$5.00")),
        ("number", "1250", ("$1,250", r"\$1{,}250", "1250 USD", "€1,250", r"1250\text{ euros}", "£1,250.00")),
        ("number", "3.75", ("$3.75", "3,75 €", r"3{,}75\text{ Euro}", "3.75", r"\$3.75")),
    ],
    "percent": [
        ("number", "75%", ("75%", r"75\%", "75 percent", "0.75", r"75\ \%")),
        ("number", "20", ("20%", r"20\%", "20", r"20\text{ percent}")),
    ],
    "fraction": [
        ("number", "3/4", ("3/4", r"\frac{3}{4}", r"\dfrac{3}{4}", r"\tfrac34", "0.75", r"P = \frac{3}{4}")),
        ("number", r"\frac{1}{3}", (r"\frac{1}{3}", r"\frac13", "1/3", r"\dfrac{1}{3}", "⅓")),
    ],
    "negative": [
        ("number", "-5", ("-5", "−5", "- 5", r"-5^\circ\text{C}", r"x = -5", "-5.0", r"-5^{\circ}")),
        ("number", "-0.5", ("-0.5", r"-\frac{1}{2}", "-1/2", r"-\dfrac12", "-.5")),
    ],
    "angle": [("number", "90", (r"90^\circ", "90°", r"90^{\circ}", r"90\text{ degrees}", r"\theta = 90^\circ"))],
    "formula": [
        ("math", "x^2+2x+1", ("x^2+2x+1", "(x+1)^2", "1 + 2x + x^2", r"(1+x)^{2}", "y = x^2+2x+1")),
        ("math", r"5\sqrt{2}", (r"5\sqrt{2}", r"5\sqrt2", r"\sqrt{50}", r"5 \cdot \sqrt{2}")),
        ("math", r"\frac{\pi}{4}", (r"\frac{\pi}{4}", r"\dfrac{\pi}{4}", r"\pi/4", r"\tfrac{1}{4}\pi")),
        ("math", "(-2, 3)", ("(-2, 3)", "(-2,3)", r"\left(-2, 3\right)", r"x=-2,\ y=3")),
        ("math", "2^{10}-1", ("2^{10}-1", "2^{10} - 1", "1023")),
        ("math", r"[0,\infty)", (r"[0,\infty)", r"[0, \infty)", r"\left[0,\infty\right)")),
    ],
    "choice": [
        ("choice", "B", ("B", "(B)", r"\text{B}", r"\textbf{(B)}", "B)", r"\text{(B)}")),
        ("choice", "C", ("C", "(C) 17", r"\text{C}", r"\textbf{(C)}\ 17", "C.", "Option C")),
    ],
    "word": [
        ("exact", "Paris", ("Paris", r"\text{Paris}", "**Paris**", "paris", "Paris.")),
        ("exact", "the Netherlands", ("Netherlands", "the Netherlands", r"\text{The Netherlands}")),
        ("exact", "Tuesday", ("Tuesday", r"\text{Tuesday}", r"\mathrm{Tuesday}")),
        ("exact", "7:45", ("7:45", r"\text{7:45}", "7:45.")),
        ("exact", "a square", ("square", "a square", r"\text{A square}")),
        ("math", "a square", (r"\text{square}", r"\text{a square}")),
    ],
}  # fmt: skip

SENTENCES: dict[str, list[str]] = {
    "count": [
        "There were {} apples.",
        "If he buys 3 more he would have {}.",
        "The number that cannot be formed is {}.",
        "It would take {} days.",
        "So she needs at least {} more votes to win.",
        "At most {} guests can sit down, since 5 chairs are broken.",
        "It is not 41 but {}.",
        "One might think it is 41, but that would be wrong: the correct count is {}, not 41.",
        "Bob says 40. He is mistaken, because he forgot the last row; the true number is {}.",
        "Let me check: 6 * 7 = 42 is irrelevant here. Final answer: {}",
        "Suppose every box were full; then there would be {} pens.",
        "What is the least number of coins without which he could not pay? That is {}.",
        "How many are neither red nor blue? {}.",
        "The question asks how many do NOT like tea, hence {}.",
        "The value of $n$ for which no solution exists is {}.",
        "Hmm, wait. I made a mistake above; redoing the last line gives {}.",
        "Assuming that nobody leaves, {} people remain.",
        "Had they never met, {} letters would have been sent!",
        "No fewer than {} tiles will do, and no more than that are needed.",
        "Unless it rains, they will harvest {} baskets.",
        "Each of the 12 boxes but one holds 4, so all but one make up the total: {}",
        "I doubt that it can be done in less, so I'd go with {}.",
        "yeah so its {} lol, that wasn't hard",
        "Thus the answer is {}, which is twice as many as before and half of what the other team has.",
        "Could it be 43? No. Could it be {}? Yes.",
        "Either way, whether or not he pays, the count is {}.",
        "The impossible total among those listed is {}. The others can all be reached.",
        "Nobody would guess it, but exactly {} of them are false.",
        "Tom (who never counts himself) should have said {}.",
        "Therefore, excluding the two that were rejected, there are {} left.",
        "| step | value |\n|---|---|\n| first | 12 |\n| total | {} |",
        "- first: 12\n- second: 30\n- in all: {}",
        "1. Add the two.\n2. Divide by 5.\n3. The result is {}.",
        "**Step 1.** We have 3 rows.\n\n**Step 2.** We have 9 columns.\n\n### Answer\n\n{}",
        "> Restated: for which number is the claim false?\n\n{}",
        "Adding 17 and 25, and dividing by 1, we arrive at\n\n{}\n\nwhich is not prime.",
        "{} is what remains if nothing is lost.",
        "The answer is {}. That is not what the textbook says, and I believe the textbook is wrong.",
        "The answer is {}; 41 is wrong because the first day was left out.",
        "{}\n\nCheck: this is more than 3 and less than 10,000,000. It does not exceed the limit.",
        "I first got 41. That was incorrect. On second thought it is {}.",
        "You can't do better than {}. Scratch the earlier estimate of 40.",
        "In Python:\n```python\nprint(6 * 9)\n```\nThis would print 54, but the sum asked for is {}.",
        "For example, with 2 rows there'd be 4; with the given rows there are {}.",
        'As the hint says "not every guest eats", {} plates suffice.',
        "My friend claims 99 or 100. Ignore that: {}.",
        "Er hat nicht 41, sondern {} Murmeln.",
        "Wenn sie noch 3 kauft, hätte sie {} Stück. Falsch wäre es, die Pause mitzuzählen.",
        "Die kleinste Zahl, die nicht gebildet werden kann, ist {}.",
        "Il n'y a pas 41 mais {} élèves.",
        "S'il en achetait 3 de plus, il en aurait {}, ni plus ni moins.",
        "La respuesta no es 41, sino {}.",
        "Si nadie falta, quedan {} personas; sin contar al profesor.",
        "Non sono 41, ma {} in tutto.",
        "所以不是41，而是{}。",
        "如果没有人离开，一共有{}个人。",
        "答えは41ではなく、{}です。",
        "誰も来なければ、残りは{}個ではないか、と思うかもしれないが、それで正しい。",
        "Это не 41, а {}. Ответ 41 был бы неверным.",
        "Если никто не уйдёт, останется {} человек.",
        "ليس 41 بل {}.",
        "إذا لم يغادر أحد، سيبقى {} شخصًا.",
        "यह 41 नहीं, {} है।",
        "अगर कोई नहीं जाता, तो {} लोग बचेंगे।",
        "답은 41이 아니라 {}입니다.",
        "Cevap 41 değil, {}.",
    ],
    "items": [
        "So he is left with {}.",
        "If none had been lost, there would have been {}.",
        "That cannot be more than {}, and it is not less.",
        "Without the broken ones she still has {}, doesn't she? Yes.",
        "So bleiben ihm {}, wenn niemand etwas nimmt.",
        "剩下的不超过：{}",
    ],
    "measure": [
        "The other side is {} long, if we neglect the border.",
        "It must be under 100, and indeed it comes to {}, not 100.",
        "At that rate it would need {} to be full.",
        "The wall is at least {} according to the plan; we were asked for that least value.",
        "Hence it is {}; any other value would contradict (2).",
        "Sans la pause, il faudrait {}.",
        "Ohne Pause wären es {}.",
        "Без остановок было бы {}.",
    ],
    "money": [
        "She would have paid {} if there were no discount.",
        "He can't afford it; he is short by {}.",
        "The cheapest ticket that isn't sold out costs {}.",
        "In the end it was {}, instead of the $9 on the tag.",
        "Without tax, that's {}. With tax it'd be a different question.",
        "Sie hätte {} gespart, nicht 9 €.",
        "Elle aurait payé {} au lieu de 9 €.",
        "もし割引がなければ、{}になります。",
    ],
    "percent": [
        "The chance that it does not rain is {}.",
        "That is {} of them, or three in every four before rounding if you like.",
        "Fewer than half failed; to be precise, the pass rate asked for is {}.",
        "La probabilidad de que no llueva es {}.",
        "不下雨的概率是{}。",
    ],
    "fraction": [
        "The probability that neither is chosen is {}.",
        "If it were fair, we would expect {}.",
        "The part that was not eaten is {}, not one half.",
        "La probabilité qu'aucun ne soit choisi est {}.",
        "Вероятность того, что ни один не выбран: {}",
        "किसी के न चुने जाने की प्रायिकता {} है।",
    ],
    "negative": [
        "Below zero! It would be {}.",
        "The only root that isn't positive is {}.",
        "If we subtract once more, we get {}, which can't be a length but may be a temperature.",
        "Die einzige Lösung, die nicht positiv ist: {}",
        "Jika tidak ada perubahan, hasilnya {}.",
    ],
    "angle": [
        "The angle cannot be acute; it is {}.",
        "If the lines were parallel it would not be {}, but they are not, so it is.",
        "Der Winkel ist {}, kein spitzer.",
    ],
    "formula": [
        "The expression that is not a perfect guess, but proved, is {}.",
        "If $a \\neq b$ we would have\n\n{}\n\nas claimed.",
        "Unless I am mistaken, this simplifies to {}.",
        "It can't be simplified further than {}.",
        "Suppose not. Then we reach a contradiction; hence {}.",
        "So it equals {}, rather than what one gets by dropping a term.",
        "Also ergibt sich {}, falls nichts gekürzt wird.",
        "因此，结果不是别的，而是{}。",
        "Следовательно, если ошибок нет, {}.",
    ],
    "choice": [
        "The only statement that is not true is {}.",
        "A is wrong, D is wrong. So it must be {}.",
        "I would pick {}, because none of the others can hold.",
        "If E were right, A would be as well; so {}.",
        "Die falsche Aussage ist {}.",
        "错误的选项是{}。",
    ],
    "word": [
        "If it isn't Rome, it would have to be {}.",
        "The one that does not belong to the list is {}.",
        "Not Rome, as many would think: {}.",
        "Es ist nicht Rom, sondern {}.",
        "Ce n'est pas Rome, c'est {}.",
    ],
}

BOXES = (
    r"\boxed{%s}", r"$\boxed{%s}$", r"$$\boxed{%s}$$", "\n\\[\n\\boxed{%s}\n\\]\n", r"\(\boxed{%s}\)",
    r"**$\boxed{%s}$**", r"$\large\boxed{%s}$", r"\boxed{ %s }", "$$\n\\boxed{%s}\n$$", r"$= \boxed{%s}$", r"\fbox{%s}",
)  # fmt: skip
TAGS = ("<answer>%s</answer>", "<answer> %s </answer>", "<answer>\n%s\n</answer>", "**<answer>%s</answer>**")
LINES = ("\n#### %s", "\n\n#### %s\n", "\n####%s", "\n#### %s.", "\n#### $%s$", "\n**#### %s**")
WHOLE = ("%s", "%s.", "**%s**", " %s\n", "$%s$", r"\boxed{%s}")

# Whole solutions: kind, form, gold answer, text.
SOLUTIONS: list[tuple[str, str, str, str]] = [
    ("number", "boxed", "42", r"I will put my final answer within \boxed{}. The sum is \boxed{42}."),
    ("number", "boxed", "42", r"We get \boxed{42}. Checking it another way: 17 + 25 is again \boxed{42.0}."),
    ("number", "boxed", "42", "17 + 25 = 42\n\\boxed{42}"),
    ("number", "boxed", "42", "```\n\\boxed{42}\n```"),
    ("number", "boxed", "42", "The code says:\n```latex\n\\boxed{42}\n```\nand I agree."),
    ("number", "boxed", "42", r"So he sees \boxed{42}, as does she. Is that the 7th or the 8th? Not asked."),
    ("number", "boxed", "42", r"The \boxed{42}nd term? No: we need the count, which is the same number."),
    ("number", "boxed", "42", r"It is the $\boxed{42}^{\text{nd}}$ day."),
    ("number", "boxed", "42", r"$17 + 25 = \boxed{42}$, not $43$."),
    ("number", "boxed", "-42", r"$0 - 42 = -\boxed{42}$"),
    ("number", "boxed", "42", "- \\boxed{42}"),
    ("number", "boxed", "42", r"Answer - \boxed{42}"),
    ("number", "boxed", "42", r"$$\begin{aligned} x &= 50 - 8 \\ &= \boxed{42} \end{aligned}$$"),
    ("number", "boxed", "90", r"$\angle ABC = \boxed{90}^\circ$, unless the figure is wrong."),
    ("number", "boxed", "5", r"He would owe $\$\boxed{5}$, if not more."),
    ("number", "boxed", "75", r"Not everyone came: \boxed{75}\% did."),
    ("number", "boxed", "36", r"The area is $\boxed{36}\text{ cm}^2$, not $36$ cm."),
    ("number", "boxed", "42", "### Solution\n\nSuppose $x<0$. Impossible.\n\n$$\n\\boxed{42}\n$$\n\nDone? Yes."),
    ("number", "boxed", "72", r"<b>Answer:</b> \boxed{72} &mdash; Bob's 71 is wrong."),
    ("number", "####", "72", "#### Step 1\n48 / 2 = 24\n#### Step 2\n48 + 24 = 72\n#### 72"),
    ("number", "####", "72", "It isn't 71.\n#### 72 clips"),
    ("number", "####", "72", "She would have 72, if asked. #### 72"),
    ("number", "####", "72", "The answer:\n####\n72"),
    ("number", "####", "72", "#### Answer: 72"),
    ("number", "####", "72", r"#### \boxed{72}"),
    ("number", "####", "72", "#### 48 + 24 = 72"),
    ("number", "####", "1200", "First try:\n#### 1100\nThat is wrong, I left out May.\n#### $1,200"),
    ("number", "<answer>", "72", "<answer>Natalia sold 72 clips altogether in April and May.</answer>"),
    ("number", "<answer>", "72", "<answer>The answer is 72.</answer>"),
    ("number", "<answer>", "72", "Not 71. <ANSWER>72</ANSWER> Bob disagrees, and says 71."),
    ("number", "<answer>", "72", r"<answer>\boxed{72}</answer>"),
    ("number", "<answer>", "72", r"<answer>$x = 72$</answer>"),
    ("number", "<answer>", "72", "<answer>71</answer> Wait, that is wrong. <answer>72</answer>"),
    ("number", "<answer>", "72", "I was told to use <answer> tags, so: <answer>72</answer>"),
    ("number", "<answer>", "72", "<answer>48 + 24 = 72</answer>"),
    ("number", "whole", "42", "17 + 25 = 42"),
    ("number", "whole", "42", "17 + 25 = 42."),
    ("number", "whole", "42", "`42`"),
    ("number", "whole", "42", "x = 42"),
    ("number", "whole", "-5", "- 5"),
    ("number", "whole", "-5", "-5°C"),
    ("number", "whole", "65", "65 miles per hour"),
    ("choice", "whole", "B", "b"),
    ("choice", "whole", "B", "(B)"),
    ("choice", "boxed", "B", r"\boxed{\text{B}} is right; A is wrong and so is D."),
    ("choice", "<answer>", "A", "<answer>A</answer>"),
    ("choice", "<answer>", "A", "<answer>A) Nairobi</answer>"),
    ("choice", "####", "D", "Not A, B or C.\n#### D"),
    ("exact", "<answer>", "Mercury", "Not Venus. <answer>Mercury</answer>"),
    ("exact", "####", "no", "Would he? Never.\n#### No."),
    ("exact", "boxed", "no solution", r"\boxed{\text{No solution}}"),
    ("math", "<answer>", "x^2+1", "<answer>$x^2 + 1$</answer>"),
    ("math", "<answer>", "x^2+1", "<answer>f(x) = x^2 + 1</answer>"),
    ("math", "<answer>", "x^2+1", r"<answer>\boxed{x^2+1}</answer>"),
    ("math", "####", "x^2+1", r"#### $1 + x^2$"),
    ("math", "boxed", "2-2p", r"If not, $x - p = \boxed{-2(p-1)}$."),
    ("math", "boxed", r"\{1,2\}", r"It is not empty: $\boxed{\{2,1\}}$"),
    ("math", "boxed", r"\text{Evelyn}", r"\boxed{\text{Evelyn}} would win."),
    ("math", "boxed", "x > 5", r"unless $x \le 5$: \boxed{x > 5}"),
]  # fmt: skip


def right_answers(seed: int = 0) -> Iterator[Case]:
    """Natural right answers, about 590: every sentence in every form, and every way to write an answer."""
    rng = random.Random(seed)

    def case(kind: str, form: str, gold: str, text: str) -> Case:
        return {"kind": kind, "form": form, "gold": gold, "text": text, "right": True, "only_form": True}

    for group, sentences in SENTENCES.items():
        for sentence in sentences:
            for form, dresses in (("boxed", BOXES), ("<answer>", TAGS), ("####", LINES)):
                kind, gold, written = rng.choice(VALUES[group])
                value, dress = rng.choice([(v, d) for v in written for d in dresses if fits(d, v)])
                shown = dress % value
                text = sentence.format(value) + shown if form == "####" else sentence.format(shown)
                yield case(kind, form, gold, text)
    for group, values in VALUES.items():
        for kind, gold, written in values:
            for value in written if group != "formula" else written[:2]:
                dress = rng.choice([d for d in WHOLE if fits(d, value)])
                yield case(kind, "whole", gold, dress % value)
    for kind, form, gold, text in SOLUTIONS:
        yield case(kind, form, gold, text)


def fits(dress: str, value: str) -> bool:
    """Whether a value may stand there as one would write it: no Markdown in a box, no dollars within dollars."""
    box, maths = "boxed" in dress or "fbox" in dress, "$" in dress or "\\[" in dress or "\\(" in dress
    if ("**" in value and ("**" in dress or box or maths)) or ("%s**" in dress and value.endswith(".")):
        return False
    return not ("$" in value.replace(r"\$", "") and (maths or box)) and not (
        dress.endswith("%s.") and value[-1] == "."
    )


# Inside of a form: what states no value, two, or another one than the gold answer 42.
INSIDE = (
    "41 or 42", "42 or 41", r"41 \text{ or } 42", "41, 42", "42, 41", "42; 43", "41 / 42", "41-43", "40 to 45",
    "[41, 43]", r"\{41, 42\}", r"42 \quad 43", "42 43", "4 2", "between 41 and 43", r"\pm 42", r"x \geq 42", "x > 41",
    r"x \neq 42", r"\text{not } 42", "not 42", "at least 42", "more than 42", "41 = 42", "17 + 25", "6 * 7", "42^2",
    r"\sqrt{42}", "-42", "420", "0.42", r"\frac{42}{2}", "42x", "x", "", "?", "1, 2, 3, 42", "42 (or 43)",
    "either 42 or 43",
    r"\begin{matrix}42\\43\end{matrix}", "not 41", "half of 42", "42 million", r"\frac{42}{0}", "42 = x = 43", "forty",
)  # fmt: skip
# form, kind, gold answer, text: attacks by the form around it.
AROUND: list[tuple[str, str, str, str]] = [
    ("boxed", "number", "42", r"\boxed{41} \boxed{42}"),
    ("boxed", "number", "42", r"\boxed{42} \boxed{41}"),
    ("boxed", "number", "42", r"\boxed{41}, \boxed{42} or \boxed{43}"),
    ("boxed", "number", "42", " ".join(rf"\boxed{{{n}}}" for n in range(1, 100))),
    ("boxed", "number", "42", "\n".join(rf"{n}. $\boxed{{{n}}}$" for n in range(30, 50))),
    ("boxed", "number", "42", "| \\boxed{41} | \\boxed{42} |"),
    ("boxed", "number", "42", r"\boxed{41 \boxed{42}}"),
    ("boxed", "number", "42", r"\boxed{\boxed{42} \boxed{41}}"),
    ("boxed", "number", "42", r"\boxed{41 \fbox{42}}"),
    ("boxed", "number", "42", r"\boxed{x} \boxed{42}"),
    ("boxed", "number", "42", r"\boxed{42!}"),
    ("boxed", "number", "42", r"\boxed{42"),
    ("boxed", "number", "42", r"\boxed{41} \boxed{42"),
    ("boxed", "number", "42", r"\boxed{4}2"),
    ("boxed", "number", "42", r"4\boxed{2}"),
    ("boxed", "number", "42", r"1\boxed{42}"),
    ("boxed", "number", "42", r"\boxed{42}0"),
    ("boxed", "number", "42", r"\boxed{42}.5"),
    ("boxed", "number", "42", r"-\boxed{42}"),
    ("boxed", "number", "42", r"$\boxed{42}^2$"),
    ("boxed", "number", "42", "The answer is 42."),
    ("boxed", "number", "42", "#### 42"),
    ("boxed", "number", "42", "<answer>42</answer>"),
    ("boxed", "number", "42", r"<think>\boxed{42}</think>Done."),
    ("boxed", "number", "42", r"<think>\boxed{42}</think>\boxed{41}"),
    ("boxed", "number", "42", r"<think>So \boxed{42}"),
    ("boxed", "number", "42", r"<think>\boxed{42</think>}"),
    ("####", "number", "42", "#### 42\n#### 41"),
    ("####", "number", "42", "42"),
    ("####", "number", "42", "##### 42"),
    ("####", "number", "42", "### 42"),
    ("####", "number", "42", "<think>#### 42</think>Done."),
    ("####", "number", "42", r"\boxed{42}"),
    ("<answer>", "number", "42", "<answer>42</answer><answer>41</answer>"),
    ("<answer>", "number", "42", "<answer>42</answer>" * 5 + "<answer>43</answer>"),
    ("<answer>", "number", "42", "<answer>42"),
    ("<answer>", "number", "42", "42</answer>"),
    ("<answer>", "number", "42", "<answer></answer> 42"),
    ("<answer>", "number", "42", "<think><answer>42</answer></think>Done."),
    ("<answer>", "number", "42", "<answer>41 <answer>42</answer> 43</answer><answer>"[:12] + "41</answer>"),
    ("<answer>", "number", "42", r"<answer>\boxed{41} \boxed{42}</answer>"),
    ("whole", "number", "72", "So it is 72."),
    ("whole", "number", "72", "The answer is 72."),
    ("whole", "number", "72", "Natalia sold 72 clips."),
    ("whole", "number", "72", "72 is the answer."),
    ("whole", "number", "72", "71\n72"),
    ("whole", "number", "72", "48 + 23 = 72"),
    ("whole", "number", "72", r"\boxed{71} \boxed{72}"),
    ("boxed", "choice", "B", r"\boxed{A, B}"),
    ("boxed", "choice", "B", r"\boxed{ABCD}"),
    ("boxed", "choice", "B", r"\boxed{A} \boxed{B} \boxed{C} \boxed{D}"),
    ("boxed", "choice", "B", r"\boxed{\text{not B}}"),
    ("<answer>", "choice", "B", "<answer>A or B</answer>"),
    ("<answer>", "choice", "B", "<answer>B</answer><answer>A</answer>"),
    ("####", "choice", "B", "#### A / B"),
    ("whole", "choice", "B", "The answer is either A or B."),
    ("boxed", "exact", "Paris", r"\boxed{\text{Paris or London}}"),
    ("boxed", "exact", "Paris", r"\boxed{\text{Paris}} \boxed{\text{London}}"),
    ("<answer>", "exact", "Paris", "<answer>Paris, London</answer>"),
    ("####", "exact", "Paris", "#### not Paris"),
    ("whole", "exact", "Paris", "It is Paris."),
    ("boxed", "math", "x^2+1", r"\boxed{x^2+1} \boxed{x^2+2}"),
    ("boxed", "math", "x^2+1", r"\boxed{x^2+1 \text{ or } x^2+2}"),
    ("boxed", "math", "x^2+1", r"\boxed{x^2+1, x^2+2}"),
    ("boxed", "math", "x^2+1", r"\boxed{x^2+1 = x^2+2}"),
    ("boxed", "math", "x^2+1", r"\boxed{x^2+1 \boxed{x^2}}"),
    ("boxed", "math", "x^2+1", r"\boxed{x^2+1}2"),
    ("<answer>", "math", "x^2+1", "<answer>x^2+1; x^2+2</answer>"),
    ("<answer>", "math", "x^2+1", "<answer>$x^2+2$ or $x^2+1$</answer>"),
]


def attacks() -> Iterator[Case]:
    """Completions that would gain by the form: several answers in it, none, or another place."""
    rows = list(AROUND)
    for form, dress in (
        ("boxed", r"\boxed{%s}"),
        ("####", "#### %s"),
        ("<answer>", "<answer>%s</answer>"),
        ("whole", "%s"),
    ):
        rows += [(form, "number", "42", dress % value) for value in INSIDE]
    for form, kind, gold, text in rows:
        yield {"kind": kind, "form": form, "gold": gold, "text": text, "right": False, "only_form": True}


if __name__ == "__main__":
    for one in (*right_answers(), *attacks()):
        print(json.dumps(one, ensure_ascii=False))
