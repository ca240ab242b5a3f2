"""One site's process: it follows the register, answers its peers and drives the round machine of the run.

`run_site` is all of it (`process.py` names the parts); what sites must agree on is here for `tramfl preflight` too.
"""

from tramfl.runtime.site.agreement import agreement_of, digest_of, disagreement, misfit
from tramfl.runtime.site.life import check_format
from tramfl.runtime.site.process import run_site

__all__ = ["agreement_of", "check_format", "digest_of", "disagreement", "misfit", "run_site"]
