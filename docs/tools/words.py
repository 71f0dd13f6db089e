"""Size and readability of each page, and phrases to avoid: `python docs/tools/words.py [PAGE …]`.

For each page: Flesch reading ease of the prose (code, tables and links left out; 60 and more is plain English), words
per sentence, and bytes. These are hints; judgement decides. The exit code is 1 where a phrase to avoid is found.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

DOCS = Path(__file__).parents[1]
ROOT = DOCS.parent
#: What a reader must translate, and what to write instead.
AVOID = {
    r"practis\w+|practice\b": "meta-training, meta-train",
    r"\bfading\b|\bfades?\b": "time decay, decays",
    r"\brivals?\b": "baseline",
    r"\bset aside\b": "quarantined, left out",
    r"\bborn\b|\bdies\b": "known, first seen, last seen",
    r"\btastes?\b|\bleanings?\b": "user preference statistics",
    r"\blikeness\b|\bmeetings\b|\bbesides\b": "similarity, co-occurrence, pair features",
    r"\brough rows?\b": "8-bit quantised rows",
    r"\bforesee\w*\b|\bforesaw\b": "look ahead, predict",
    r"\blevel (?:with|or|in|on)\b": "no significant difference",
    r"\bin turn\b": "one after the other",
    r"\bverdicts?\b|\bcontests?\b": "conclusion, comparison",
    r"\bfoundations?\b": "shared pre-trained model",
    r"\bmended\b": "fixed",
    r"\bwill not do\b": "is not allowed; choose one of",
    r"\b(?:is|are) told\b": "say who says what",
    r"\bof late\b(?! (?:event|interaction))|\blately\b": "recently; in the last N interactions",
    r"\bwhoever\b|\bwhatever ails\b|\bwhat became of\b": "name the person or the thing",
    r"\bdearer\b": "more expensive",
    r"\bcomes? to grief\b|\bgoes astray\b": "fails",
    r"\bgone on with\b|\bnames nothing\b|\bso many \w+ further\b|\bis no more than\b": "say it plainly",
    r"\bnobody's promise\b|\bno privilege\b|\bonce in a great while\b|\bscript of the moment\b": "say it plainly",
    r"\bwants a larger\b|\bhas cost leads\b": "say it plainly",
    r"\bsimply\b|\bjust\b(?! before| after)|\bobviously\b(?! (correct|right))|\beasily\b|\bof course\b": "leave it out",
    r"\butili[sz]e\w*\b|\bleverage\w*\b|\bfacilitate\w*\b": "use, help",
    r"\bin order to\b": "to",
    r"\bas well as\b": "and",
}


def prose(text: str) -> str:
    """The sentences of a page: without code, tables, headings, pictures and the addresses of links."""
    text = re.sub(r"^```.*?^```|<!--.*?-->", "", text, flags=re.DOTALL | re.MULTILINE)
    lines = [line for line in text.splitlines() if not line.lstrip().startswith(("|", "#", "!", ":::"))]
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", "\n".join(lines))
    return re.sub(r"`[^`]*`", "code", text)


def reading_ease(text: str) -> tuple[float, float] | None:
    """Flesch's figure, 206.8 − 1.015 words per sentence − 84.6 syllables per word, and words per sentence."""
    sentences = [one for one in re.split(r"[.!?](?:\s|$)|\n\s*\n|\n- ", text) if re.search(r"[a-z]{2}", one)]
    words = re.findall(r"[A-Za-z]+(?:'[a-z]+)?", text)
    if len(words) < 50:
        return None
    syllables = sum(max(1, len(re.findall(r"[aeiouy]+", re.sub(r"e$", "", word.lower())))) for word in words)
    length = len(words) / len(sentences)
    return 206.835 - 1.015 * length - 84.6 * syllables / len(words), length


def avoided(text: str) -> list[str]:
    """Phrases of a page that a reader must translate, with what to write."""
    plain = prose(text)
    bad = ((found[0], instead) for phrase, instead in AVOID.items() for found in re.finditer(phrase, plain, re.I))
    return [f"{phrase!r}: {instead}" for phrase, instead in bad]


def main(names: list[str]) -> int:
    """Print one line for each page, hardest first; say what to avoid."""
    pages = [Path(name) for name in names] or [*DOCS.rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    texts = {page: page.read_text(encoding="utf-8") for page in pages}
    eases = {page: reading_ease(prose(text)) for page, text in texts.items()}
    problems = 0
    for page in sorted(pages, key=lambda page: eases[page] or (1e3, 0.0)):
        ease, length = (f"{value:.0f}" for value in eases[page]) if eases[page] else ("–", "–")
        print(f"{ease:>4} {length:>4}  {len(texts[page].encode()):>7,} B  {page.resolve().relative_to(ROOT)}")
        for phrase in avoided(texts[page]):
            problems += 1
            print(f"        {phrase}")
    print(f"{sum(len(text.encode()) for page, text in texts.items() if DOCS in page.parents):,} bytes in docs/")
    return int(problems > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
