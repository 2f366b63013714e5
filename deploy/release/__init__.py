"""Makes the files of a release of images that are built: chart, lists of what is inside, provenance, checksums.

- Every file depends on its inputs alone: equal images and an equal commit give equal files.
- What is said of an image is read from its archive, not from what the build meant to put there.
"""
