"""The result of a search: the choice, its reasons, the table, the page, and the files that train what is advised."""

import re
import shlex
import statistics
from collections.abc import Sequence
from copy import deepcopy
from math import inf
from pathlib import Path

import tomli_w

from mpitrain.errors import BadInput, some
from mpitrain.files import read_text, shipped, write_whole
from mpitrain.monitoring.records import bottlenecks, merit_of, shown
from mpitrain.report.advice.halving import ETA, at_time, column, least
from mpitrain.report.advice.search import LATE, Question, Tried, figure
from mpitrain.report.advice.trials import Trials
from mpitrain.report.comparison.table import TimesToTarget, markdown
from mpitrain.report.html import Html, duration, join, safe, show, table
from mpitrain.report.page import page, section
from mpitrain.report.runs import read_run

HEADER = ["candidate", "result", "samples/s", "bytes/sample", "seeds", "fell out"]
NEARLY = 0.95  # of the time that was asked for: a result says if a training ended before this


class Finalist:
    """A candidate that trained for the longest, with a value for each seed: the seconds to the target (None if it was
    not reached); without a target, the figure of merit at the time that was asked for, or at the end of a training that
    ended before."""

    def __init__(self, tried: Tried, question: Question) -> None:
        self.tried, self._by_time = tried, question.target is not None
        curves = [each.curve for each in tried.outcomes]
        times = TimesToTarget(curves, "merit", question.target or 0.0)
        values: Sequence[float | None] = times.of_seeds
        #: Whether the times are upper bounds, as the first evaluation was already that low.
        self.at_most, self._ended = self._by_time and times.at_most, ""
        if not self._by_time:
            asked = question.seconds * question.whole
            values = [at_time(curve, asked) for curve in curves]
            last = min(max(column(curve, "seconds"), default=asked) for curve in curves)
            self._ended = f" after {duration(last)}, not trained longer" if last < NEARLY * asked else ""
        self._known = [value for value in values if value is not None and value < inf]
        self.all, self.seeds = len(self._known) == len(values), len(values)
        self.mean = statistics.fmean(self._known) if self.all else inf
        self.high = max(self._known) if self.all else inf

    def __str__(self) -> str:
        first, known = self.tried.outcomes[0], self._known
        if not known:
            return f"not reached: {figure(first, least(first.curve))} after {duration(first.number('seconds'))}"
        figures = (statistics.fmean(known), min(known), max(known))
        mean, low, high = (duration(each) if self._by_time else figure(first, each) for each in figures)
        span = f"{mean} ({low} to {high})" if len(known) > 1 else mean
        seeds = "" if self.all else f", by {len(known)} of {some(self.seeds, 'seed')}"
        return (f"≤ {mean}" if self.at_most else span) + self._ended + seeds


class Advice:
    """The choice among the candidates that trained for the longest. Raises BadInput if there are none."""

    def __init__(self, tried: Sequence[Tried], question: Question) -> None:
        self.question, self._tried = question, tried
        longest = [Finalist(each, question) for each in tried if each.outcomes and each.share >= question.whole]
        if not longest:
            raise BadInput("--budget: no training came to its end; a larger one, or a smaller --time, is needed")
        self._finalists = sorted(longest, key=lambda each: (each.tried.fell, each.mean, least(each.tried.curve)))
        best = self._finalists[0]
        final = [each for each in longest if not each.tried.fell and each.seeds >= best.seeds]
        #: As good within the error: the finalists whose mean is no worse than the worst seed of the best finalist.
        self.equal = [each for each in final if each.mean <= best.high < inf] or [best]
        self.chosen = min(self.equal, key=lambda each: each.tried.candidate.dependence)
        self._first = self.chosen.tried.outcomes[0]

    @property
    def asked(self) -> str:
        """What was searched for, such as "time to 5.00% test error"."""
        merit = f"{self._first.part} {shown(merit_of(self._first.summary))}"
        if self.question.target is None:
            return f"{merit} after {duration(self.question.seconds * self.question.whole)}"
        return f"time to {figure(self._first, self.question.target)} {merit}"

    def lines(self) -> list[str]:
        """The advice in sentences."""
        share = self.question.whole
        said = [f"advised: {self.chosen.tried.candidate.shown}", f"{self.asked}: {self.chosen}"]
        others = [each for each in self.equal if each is not self.chosen]
        if others:
            named = "; ".join(f"{each.tried.candidate.shown}: {each}" for each in others)
            said.append(f"as good within the error, and what depends on less is taken: {named}")
        said.append(f"what decided: {self._decided()}")
        if self.question.target is not None and not self.chosen.all:
            said.append("no candidate reached that with every seed: train for longer, or ask for less")
        if any(each.at_most for each in self._finalists):
            said.append("≤: the first evaluation was already that low; a smaller --target-error tells more")
        late = [each.candidate.shown for each in self._tried if each.fell == LATE and each.share * ETA >= share * 0.99]
        if late:
            said.append(f"the budget was spent before others ended that were among the best: {'; '.join(late)}")
        if share < 1:
            longest, whole = duration(self.question.seconds * share), duration(self.question.seconds)
            said.append(f"trainings ended after {longest} of {whole}: the order beyond is extrapolated")
        return said

    def _decided(self) -> str:
        """Why the chosen finalist is better than another: than the configuration itself, or else than the next one."""
        order = sorted(self._finalists, key=lambda each: each.tried.candidate.number > 0)
        other = next((each for each in order if each is not self.chosen), None)
        if other is None:
            return "; ".join(["nothing else was trained for as long", *bottlenecks(self._first.summary)])
        name, its = f"{other.tried.candidate.shown} ({other})", other.tried.outcomes[0]
        if self.chosen.at_most and other.at_most:
            return f"only when the first evaluation came, which was below the target with {name}, too"
        said = f"it trains {self._first.speed / its.speed:.2g} times as many samples a second as {name}"
        if self.question.target is not None and self.chosen.all and other.all and not other.at_most:
            needed = self.chosen.mean * self._first.speed / (other.mean * its.speed)
            bound = "at most " if self.chosen.at_most else ""
            said += f", and needs {bound}{needed:.2g} times as many to come there"
        hindered = ", ".join(bottlenecks(its.summary))
        return f"{said}; with that {hindered}" if hindered else said

    def cells(self) -> list[list[str]]:
        """The table: the finalists, then all others by how far they came."""
        finals = {each.tried.candidate.number: each for each in self._finalists}
        rest = [each for each in self._tried if each.candidate.number not in finals]
        lines = []
        for each in [*(final.tried for final in self._finalists), *sorted(rest, key=lambda other: -other.share)]:
            told, numbers = next(iter(each.outcomes), each.carried), ["–", "–"]
            if told is not None and (samples := told.number("samples")):
                numbers = [show(told.speed, "count"), f"{told.number('bytes_sent') / samples:,.0f}"]
            name = f"{each.candidate.number} {each.candidate.shown}"
            result = str(finals.get(each.candidate.number, "–"))
            lines.append([name, result, *numbers, str(len(each.outcomes)), each.fell])
        return lines

    def write(self, trials: Trials) -> list[str]:
        """Write all files. Returns lines that say what to do with them."""
        config, lines, cells = trials.folder / "advice.toml", self.lines(), self.cells()
        script, advised = config.with_suffix(".sbatch"), deepcopy(self.chosen.tried.candidate.table)
        training = advised.setdefault("training", {})
        assert isinstance(training, dict)
        # Trainings may have been cut short for the budget; the one that is advised is whole.
        training["epochs"] = float(f"{self.chosen.tried.epochs / self.question.whole:.4g}")
        write_whole(config, "".join(f"# {line}\n" for line in lines) + tomli_w.dumps(advised))
        write_whole(script, _script(config, trials))
        write_whole(trials.folder / "advice.md", "\n\n".join([*lines, markdown(HEADER, cells)]))
        names = [each.name for final in self._finalists[:4] for each in final.tried.outcomes if not each.why]
        runs = [read_run(trials.run_folder(name), name) for name in names if trials.run_folder(name).is_dir()]
        said = join(Html(f"<p>{safe(line)}</p>") for line in lines)
        body = join([said, table(self.asked, HEADER, cells, "results")])
        write_whole(trials.folder / "report.html", page(runs, "Advice", section("Advice", body)))
        scripts = "" if Path("jobs/launch.sh").exists() else "python -m mpitrain jobs && "
        return [
            f"mpirun -n {trials.ranks} python -m mpitrain {shlex.quote(str(config))}",
            f"{scripts}. jobs/site.sh && sbatch {shlex.quote(str(script))}",
            str(trials.folder / "report.html"),
        ]


def _script(config: Path, trials: Trials) -> str:
    """A batch script for Slurm that trains `config`, made from jobs/easgd.sbatch."""
    cores, ranks = (float(str(trials.where.get(key, 1))) for key in ("cores_per_node", "ranks_per_node"))
    head = read_text(shipped("jobs") / "easgd.sbatch").partition("\n# ")[0].replace("=easgd", "=advice")
    head = re.sub(r"--ntasks=\d+", f"--ntasks={trials.ranks}", head)
    head = re.sub(r"--cpus-per-task=\d+", f"--cpus-per-task={max(int(cores / ranks), 1)}", head)
    how = "# In a folder that holds jobs/ (`python -m mpitrain jobs` writes it): . jobs/site.sh && sbatch"
    return f'{head}\n{how} {config.with_suffix(".sbatch")}\n. jobs/launch.sh\ntrain {shlex.quote(str(config))} "$@"\n'
