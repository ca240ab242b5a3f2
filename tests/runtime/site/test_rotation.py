"""A new authority in the place of the old one, while the run of real sites goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runtime.sites import ASK, SECONDS, played
from tests.runtime.together import Together
from tramfl.notation import BadInput
from tramfl.runtime.operator import certifying
from tramfl.runtime.roster import Roster
from tramfl.runtime.settings import OPERATOR, read_site
from tramfl.runtime.transport import Credentials, Peers, Refusal, Unreachable
from tramfl.runtime.transport.certificates import issued_by


@played
async def test_the_authority_is_rotated_while_the_run_goes_on_and_no_site_is_restarted(tmp_path: Path) -> None:
    async with Together(tmp_path / "f", lease_seconds=60.0).begun() as sites:
        place, old = sites.folder / "sites" / "a", (sites.folder / "ca.crt").read_bytes()
        # Without files: this caller keeps the certificate of the old authority.
        stolen = Credentials(old, (place / "site.crt").read_bytes(), (place / "site.key").read_bytes())
        thief = Peers(Roster(read_site(place / "site.toml").federation), "a", stolen)
        assert (await thief.load(1, ASK, SECONDS)).flops >= 0
        with pytest.raises(BadInput, match="no rotation is under way"):
            certifying.finish_rotation(sites.folder)

        copied = certifying.begin_rotation(sites.folder)
        assert copied == [sites.folder / "sites" / name / "ca.crt" for name in sites.names]
        assert certifying.begin_rotation(sites.folder) == copied, "to begin twice makes no third authority"
        with pytest.raises(BadInput, match="renew operator, a, b, c first"):
            certifying.finish_rotation(sites.folder)
        await sites.advanced(1)
        for name in (*sites.names, OPERATOR):
            certifying.renew(sites.folder, [name], 365, new_key=name == "b")
            await sites.advanced(1)
        assert (await thief.load(1, ASK, SECONDS)).flops >= 0

        assert certifying.finish_rotation(sites.folder) == copied
        assert not list(sites.folder.glob("former-ca.*"))
        for name in sites.names:
            pem = (sites.folder / "sites" / name / "site.crt").read_bytes()
            assert issued_by(pem, (place / "ca.crt").read_bytes())
            assert not issued_by(pem, old)
        await sites.advanced(2)

        async def refused() -> bool:
            try:
                await thief.load(1, ASK, SECONDS)
            except Refusal as error:
                return "an authority that is trusted no more" in str(error)
            return False

        await sites.until_so(refused)
        await thief.close()
        anew = Peers(Roster(read_site(place / "site.toml").federation), "a", stolen)
        with pytest.raises(Unreachable):
            await anew.load(1, ASK, SECONDS)
        await anew.close()
        await sites.advanced(2)
        assert not any(task.done() for task in sites.tasks.values())
        assert (await sites.record()).epoch == 1, "no holder was taken for lost"
