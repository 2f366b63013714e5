"""The images of this checkout, built from the packages and wheels that their locks name."""

from __future__ import annotations

from deploy.images.building.image_build import native_platform
from deploy.images.building.layers import LayerMaker
from deploy.images.catalogue import IMAGES
from deploy.images.inputs.checkout import Checkout
from deploy.images.rules.platforms import PLATFORMS
from vm_image.recipe import Origin

SERVICES = [image for image in IMAGES.values() if not image.is_guest]


def maker(platform: str = "") -> LayerMaker:
    """Makes layers for ``platform``, or for this machine."""
    native = native_platform()
    return LayerMaker(Checkout(), PLATFORMS[platform] if platform else native, native, Origin(), print)
