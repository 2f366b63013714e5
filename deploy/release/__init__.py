"""Makes the files of a release from built images: chart, bills of materials, provenance, checksums.

- Every file depends on its inputs alone: equal images and an equal commit give equal files.
- Facts about an image are read from its archive, not from what the build meant to put there.
"""
