"""Generate sentences of common words, made-up words and numbers, so that most sequences of phones occur."""

import tomllib
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mpitrain.errors import BadInput


class Language(NamedTuple):
    """Common `words`; made-up words have one to three syllables of onset + nucleus + coda, each given as a spelling."""

    words: tuple[str, ...]
    onsets: tuple[str, ...] = ()
    nuclei: tuple[str, ...] = ()
    codas: tuple[str, ...] = ()
    space: str = " "
    stop: str = "."


def _language(space: str = " ", stop: str = ".", **parts: str) -> Language:
    """A language from a table of languages.toml. Blanks separate words; without `space`, each word is a character."""
    split = {key: tuple("" if word == "-" else word for word in text.split()) for key, text in parts.items()}
    if not space:
        split["words"] = tuple("".join(split["words"]))
    return Language(**split, space=space, stop=stop)


TABLES = tomllib.loads(Path(__file__).with_name("languages.toml").read_text("utf-8"))
LANGUAGES = {name: _language(**table) for name, table in TABLES.items()}
SHARES = (0.45, 0.5, 0.05)  # probabilities of common words, made-up words, numbers


def sentence(language: str, rng: np.random.Generator) -> str:
    """A sentence of 4 to 12 words (of 8 to 24 characters in cmn). Raises BadInput for a language without a list."""
    if language not in LANGUAGES:
        raise BadInput(f"--language {language}: known are {', '.join(LANGUAGES)}")
    rules = LANGUAGES[language]
    count = int(rng.integers(4, 13)) * (2 if not rules.space else 1)
    words = [_word(rules, rng) for _ in range(count)]
    if count > 6:
        words[count // 2] += ","
    return rules.space.join(words) + (rules.stop if rng.random() < 0.8 else "?")


def _word(rules: Language, rng: np.random.Generator) -> str:
    kind = int(rng.choice(3, p=SHARES))
    if kind == 2:
        return str(int(10 ** rng.uniform(0, 4)))
    if kind == 0 or not rules.onsets:
        return _one(rules.words, rng)
    count = int(rng.integers(1, 4))
    return "".join(_one(part, rng) for _ in range(count) for part in (rules.onsets, rules.nuclei, rules.codas))


def _one(choices: tuple[str, ...], rng: np.random.Generator) -> str:
    return choices[int(rng.integers(len(choices)))]
