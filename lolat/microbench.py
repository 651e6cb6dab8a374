"""An alias of the package `microbench/` at the top of a checkout, which measures.

A wheel has the package itself here, as `lolat/microbench/`. The wheel's only top-level package is then
`lolat`, and cannot collide with another project called microbench.
"""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from microbench import backends as backends
    from microbench import blocks as blocks
    from microbench import check as check
    from microbench import choice as choice
    from microbench import environment as environment
    from microbench import journal as journal
    from microbench import learn as learn
    from microbench import learn_training as learn_training
    from microbench import probe as probe
    from microbench import runner as runner
    from microbench import worker as worker

__path__ = [str(Path(__file__).resolve().parents[1] / "microbench")]
