"""The types of the public names. Not in ``__init__.py``: the import contract reads that file, and what a
phase imports must not reach the API through the root of the package."""

from paceline.api.absent import claim as claim
from paceline.api.absent import diagnose as diagnose
from paceline.api.absent import evaluate as evaluate
from paceline.api.compare import compare as compare
from paceline.api.load import load as load
from paceline.api.plan import plan as plan
from paceline.api.prove import prove as prove
from paceline.api.runs import Run as Run
from paceline.api.runs import runs as runs
from paceline.api.sample import sample as sample
from paceline.api.train import train as train
from paceline.job import Job as Job
from paceline.ledger.outcome import Failed as Failed
from paceline.ledger.outcome import PacelineError as PacelineError
from paceline.ledger.outcome import Preempted as Preempted
from paceline.ledger.outcome import Refused as Refused
from paceline.plan.layout import Layout as Layout

__version__: str
