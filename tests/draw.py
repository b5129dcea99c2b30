# SPDX-License-Identifier: Apache-2.0
"""Which cases of a long list a test takes: a share of them, drawn by a seed that it prints. RESHARD_TEST_TIMES=N takes N times as many."""
import os
import random
import time


def times():
    return float(os.environ.get("RESHARD_TEST_TIMES", 1))


def add_share(parser, share):
    parser.add_argument("--share", type=float, default=min(1, share * times()), metavar="N", help=f"of the cases, {share} if not said")


def add_options(parser, share):
    add_share(parser, share)
    parser.add_argument("--seed", type=int, default=int(time.time()), metavar="N", help="that draws them")


class Draw:
    def __init__(self, arguments):
        self.share, self.chance = arguments.share, random.Random(arguments.seed)
        print(f"# seed {arguments.seed}, share {arguments.share}", flush=True)

    def of(self, cases):
        """In their order; one at least, where there is one."""
        cases = list(cases)
        drawn = [case for case in cases if self.chance.random() < self.share]
        return drawn or self.chance.sample(cases, min(1, len(cases)))
