"""`python -m bench.serving_storm --minutes 5 --seed 1`: the engine's server under many clients, for long.

Clients who stream and who don't, who talk over several turns, want several answers, search by beams, stop
at strings; who leave before the first token or in the middle, send half a body, read drop by drop, give too
little time, ask for more than there is room for or for what there isn't; and a service that is killed in
between. The tiers are small, so that who runs is swapped out and comes back from disk.

Of each round what is right is asked of the quiet server first, and compared with the plain run. After it no
frame may be in use and no error in a log. Ends with status 1 where anything was wrong, which a seed repeats.
"""

import argparse
import asyncio
import random
import sys
import time
from collections import Counter

from bench.storm.catalogue import draw_asks, draw_talks
from bench.storm.plainly import check_ask, check_talk
from bench.storm.program import BODY_BYTES, FRAMES, Program, started
from bench.storm.storm import ask_quietly, calm, storm
from bench.storm.visitors import Findings, Setting
from engine.server.loading import Loaded, load

ROUND_SECONDS = 30.0
FAULTS_SHOWN = 20
MODEL = "tiny"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.serving_storm", description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=5.0, help="for how long, in rounds of half a minute")
    parser.add_argument("--seed", type=int, default=1, help="of the first round; the next has the next")
    parser.add_argument("--visitors", type=int, default=64, help="clients at once")
    parser.add_argument("--no-kills", action="store_true", help="leave the service alive")
    arguments = parser.parse_args()
    loaded, end = load(MODEL), time.monotonic() + arguments.minutes * 60
    faults = 0
    with started(MODEL) as program:
        for seed in range(arguments.seed, 1 << 31):
            seconds = min(ROUND_SECONDS, end - time.monotonic())
            if seconds <= 0:
                break
            findings = _round(loaded, program, seed, seconds, arguments.visitors, not arguments.no_kills)
            faults += len(findings.faults)
            for fault in findings.faults[:FAULTS_SHOWN]:
                print(f"  WRONG: {fault}")
            print(f"seed {seed}: {len(findings.faults)} wrong; {_told(findings.counts)}; {program.sizes()}")
            sys.stdout.flush()
        status = program.end()
        if status or (left := program.new_lines()):
            faults += 1
            print(
                f"  WRONG: the server has ended with status {status}, and said {left if not status else ''}"
            )
    sys.exit(1 if faults else 0)


def _round(
    loaded: Loaded, program: Program, seed: int, seconds: float, visitors: int, has_kills: bool
) -> Findings:
    findings, draw = Findings(), random.Random(seed)
    asks, talks = draw_asks(draw, 40, MODEL, 150), draw_talks(draw, 8, MODEL, 40)
    setting = Setting(
        url=program.url,
        model=MODEL,
        asks=asks,
        talks=talks,
        characters_beyond_memory=FRAMES["--gpu"] * 16 + 1,
        characters_beyond_context=loaded.model.config.context_length + 1,
        body_bytes=BODY_BYTES,
    )
    asyncio.run(ask_quietly(program.url, asks, talks))
    checked = [check_ask(loaded, ask) for ask in asks if not ask.is_search]
    checked += [check_talk(loaded, talk, f"quiet {number}") for number, talk in enumerate(talks)]
    findings.faults += filter(None, checked)
    kill = program.kill_service if has_kills else None
    asyncio.run(storm(setting, seed, findings, visitors=visitors, seconds=seconds, kill=kill))
    usage = calm(findings, program.usage, program.answers_under_way)
    findings.counts["swaps out"] = usage.sequences.swaps_out
    findings.faults += [f"in a log: {line}" for line in program.new_lines()]
    return findings


def _told(counts: Counter[str]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in sorted(counts.items()))


if __name__ == "__main__":
    main()
