"""The 66 fault drills: what is broken, and what is right when it is. Which tests hold each is said by their markers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Drill:
    """One row of the list.

    Attributes:
        fault: what is broken.
        right: what has to happen, in a few words.
        not_yet: why no test covers all of it; empty where tests do.
    """

    fault: str
    right: str
    not_yet: str = ""


_FEDERATION = "federation is to come"
_HOSTS = "several hosts are to come"

DRILLS: dict[int, Drill] = {
    1: Drill("SIGKILL of a rank in a step", "seen in 5 s, no finished step is lost, same bits"),
    2: Drill("SIGKILL of rank 0; of the launcher", "no orphan; the next launch resumes"),
    3: Drill(
        "SIGTERM (preemption notice)", "saves its step, exit 50; a grace too short leaves the last save"
    ),
    4: Drill("SIGTERM twice, during a save", "no deadlock, never half a `latest`"),
    5: Drill("SIGSTOP of a rank", "found at the limit; rank and collective named; ended"),
    6: Drill("SIGSTOP, then SIGCONT before the limit", "no false alarm; straggler time"),
    7: Drill("exception on one rank", "all stop in 5 s; first cause told once"),
    8: Drill("segmentation fault", "as D01, with the signal's name"),
    9: Drill("out of memory on one rank", "rank, peak and a layout; no network error"),
    10: Drill("crash loop", "stops after N restarts without progress, own exit code"),
    11: Drill("slow rank", "named, lost seconds in the ledger, left alive"),
    12: Drill("rank holds its interpreter's lock", "a process beside it finds it"),
    13: Drill("one rank skips a collective", "number and rank named"),
    14: Drill("other shapes, other order", "found before data is used"),
    15: Drill("dropped link", "short: retried; long: as D01", f"links: {_HOSTS}"),
    16: Drill(
        "port in use",
        "another one on one host; named for several",
        f"no port is asked for on one host; {_HOSTS}",
    ),
    17: Drill(
        "name does not resolve, IPv6 only", "literal addresses work; the address tried is named", _HOSTS
    ),
    18: Drill("inner time-out longer than the outer", "refused, or impossible"),
    19: Drill("SIGKILL at any instant of a save", "`latest` is whole; the rest is removed"),
    20: Drill("power cut: manifest there, shard missing", "rejected; goes back to the one before, says so"),
    21: Drill("disk full", "loud; last save untouched; works again when there is room"),
    22: Drill("inodes or quota used up", "as D21, and says which"),
    23: Drill("flipped bits", "all found; file and tensor named; the one before offered"),
    24: Drill("truncated file", "found, file named"),
    25: Drill("swapped shards", "found by identity"),
    26: Drill("stale shard of an older save", "rejected"),
    27: Drill("missing shard", "named"),
    28: Drill("read-only store", "found before step 1"),
    29: Drill("folder removed during the run", "next save fails loudly or makes it again"),
    30: Drill("background save fails", "training learns of it at the next step at the latest"),
    31: Drill("background save slower than its interval", "waits; one writer; one copy of memory"),
    32: Drill("weights change during a save", "what is saved is its step's, bit for bit"),
    33: Drill("retention, saves failing", "the last verified one stays; numbers, not letters"),
    34: Drill("two launches of one run", "second refused; a dead one's lock is recognised"),
    35: Drill("other number of ranks at resume", "same samples, or refused with the allowed sizes"),
    36: Drill("other model, seed, batch at resume", "refused by name; allowed by a flag; listed"),
    37: Drill("missing, unknown, renamed tensors", "strict, both sets listed"),
    38: Drill("newer format", "refused with the version that reads it"),
    39: Drill("NaN on one rank", "all stop; weights finite; rank, parameter and batch told"),
    40: Drill("infinite loss; a spike ×1000", "skipped or rolled back by rule, counted"),
    41: Drill("a bit flips on one replica", "found within K steps, rank named"),
    42: Drill("corrupt row of data", "stop or skip by rule, with file and line; equal steps"),
    43: Drill("too little data", "refused before any rank, with what is needed"),
    44: Drill("token id outside the vocabulary", "refused on the CPU with file and place"),
    45: Drill("all targets masked on one rank", "no 0/0; it weighs nothing"),
    46: Drill("archive bomb; a line of 10 GB", "refused by name, memory bounded"),
    47: Drill("any name: Unicode, quotes, newline, case", "works, or refused with the rule"),
    48: Drill("loop of links; data changed during the run", "ends; noticed at the resume"),
    49: Drill("misspelt key", "refused, nearest key told"),
    50: Drill("wrong type, NaN, negative, 1e309", "refused with the key's path"),
    51: Drill("impossible layout", "refused before launch, with what is allowed"),
    52: Drill("leftovers of another launcher", "named; nobody is waited for"),
    53: Drill("clock skew and jump", "monotonic durations; `latest` by step"),
    54: Drill("locale, time zone, summer time", "same numbers, same names"),
    55: Drill("other versions on other hosts", "refused at the meeting", _HOSTS),
    56: Drill("pickle in a checkpoint", "refused by format; never loaded"),
    57: Drill("paths that lead outside", "refused; nothing outside is touched"),
    58: Drill("manifest or header lies about sizes", "refused before memory is taken"),
    59: Drill("no TLS over a network", "refused without a flag", _FEDERATION),
    60: Drill("unknown, expired, replayed identity", "rejected and logged", _FEDERATION),
    61: Drill("poisoned client", "refused, or outweighed; named", _FEDERATION),
    62: Drill("client drops in each phase", "round closes with the rest", _FEDERATION),
    63: Drill("all clients report no example", "round refused", _FEDERATION),
    64: Drill("server dies in a round", "goes on from the last closed one", _FEDERATION),
    65: Drill("privacy budget spent", "stops; told; survives a restart", _FEDERATION),
    66: Drill("secrets in logs and checkpoints", "none", f"the keys that it is about: {_FEDERATION}"),
}
