"""One site's process: it follows the register, answers its peers and drives the round machine of the run.

`run_site` is all of it (`process.py` names the parts); what sites must agree on is here for `tramfl preflight` too.
"""

from tramfl.runtime.site.agreement import digest_of_settings, misfit
from tramfl.runtime.site.life import check_format
from tramfl.runtime.site.process import run_site

__all__ = ["check_format", "digest_of_settings", "misfit", "run_site"]
