"""Completion in the shell, made by shtab from the parser as it is."""

import subprocess

import pytest

from mpitrain.__main__ import parser

TYPED = """
COMP_WORDS=({words} ""); COMP_CWORD={place}; COMP_WORDS[{place}]={last!r}; _shtab_mpitrain; echo "${{COMPREPLY[@]}}"
"""


@pytest.mark.parametrize(
    ("words", "last", "found"),
    [
        ("mpitrain", "rep", "report"),
        ("mpitrain report", "--fo", "--format"),
        ("mpitrain report --format", "", "png svg"),
        ("mpitrain prepare", "ka", "kaldi"),
        ("mpitrain prepare kaldi", "--al", "--alignments"),
    ],
)
def test_bash_completes_commands_options_and_choices(words: str, last: str, found: str) -> None:
    shtab = pytest.importorskip("shtab", reason="the extra mpitrain[completion] is not installed")
    typed = TYPED.format(words=words, place=len(words.split()), last=last)
    ended = subprocess.run(
        ["bash", "-c", shtab.complete(parser(), "bash") + typed], capture_output=True, text=True, timeout=60
    )
    assert ended.stdout.split() == found.split(), ended.stderr
