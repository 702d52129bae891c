"""The pointer of a promoted store in object storage: an object named ``rollouts.zarr`` that says which version it is.

On a disk ``rollouts.zarr`` is a link to ``versions/v000002``. Object storage has no links, so the object of that name
holds the name of the version, and whatever is opened below it is opened below the version. A store that somebody has
copied to such a URL has no such object, and is opened as it is.
"""

from __future__ import annotations

from rollout_assets.errors import StoreError
from rollout_assets.locations.objects import ObjectFolder
from rollout_assets.locations.url import ObjectUrl
from rollout_assets.parsing import parse_json

STORE_NAME = "rollouts.zarr"


def resolve_url(location: str) -> ObjectUrl:
    """The URL of the version that a location leads to; any other URL stays as it is. One request at most."""
    url = ObjectUrl(location)
    campaign, separator, below = f"{url}/".partition(f"/{STORE_NAME}/")
    if not separator:
        return url
    try:
        data = ObjectFolder(ObjectUrl(campaign)).read(STORE_NAME)
    except FileNotFoundError:
        return url
    version = ObjectUrl(campaign) / "versions" / _version(data, f"{campaign}/{STORE_NAME}")
    return ObjectUrl(f"{version}/{below}") if below else version


def _version(data: bytes, where: str) -> str:
    try:
        pointer = parse_json(data)
        version = pointer["version"]
    except (ValueError, KeyError, TypeError):
        version = None
    if not isinstance(version, str) or "/" in version or not version:
        raise StoreError(
            f"{where}: does not say which version it is; remove the object, then 'rollout-assets campaign promote' "
            f"writes it again"
        )
    return version
